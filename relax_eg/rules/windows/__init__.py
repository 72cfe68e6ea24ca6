"""Other forms of convolutions and poolings."""
