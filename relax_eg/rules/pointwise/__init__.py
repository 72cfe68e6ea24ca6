"""Shorter terms: expressions that compute each element from one element of each leaf, and equal ones that cost less.

A *term* is such an expression over scalar variables (`terms`). `tables` lists the short terms over some variables with
their values at sample points. `search` looks the values of a term up there, also up to a constant that follows from the
values, so that no law has to be stated. Each candidate is then tested like a rule and proved.

The way of Ruler (Nandi et al., OOPSLA 2021) and Herbie (Panchekha et al., PLDI 2015), one term at a time.
"""
