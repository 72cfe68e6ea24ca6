"""The shipped books of rules. Every rule has a checked verdict on file (`verdicts.json`)."""

from relax_eg.rules.book.attention import attention
from relax_eg.rules.book.blocks import blocks
from relax_eg.rules.book.broadcasts import broadcasts
from relax_eg.rules.book.contraction import contraction
from relax_eg.rules.book.convolution import convolution
from relax_eg.rules.book.decoding import decoding
from relax_eg.rules.book.elementwise import elementwise
from relax_eg.rules.book.functions import functions
from relax_eg.rules.book.fusion import fusion
from relax_eg.rules.book.index_maps import index_maps
from relax_eg.rules.book.inputs import inputs
from relax_eg.rules.book.layout import layout
from relax_eg.rules.book.legalization import legalization
from relax_eg.rules.book.libraries import calls
from relax_eg.rules.book.library_forms import forms
from relax_eg.rules.book.movement import movement
from relax_eg.rules.book.networks import networks
from relax_eg.rules.book.orders import orders
from relax_eg.rules.book.pieces import pieces
from relax_eg.rules.book.pointwise import pointwise
from relax_eg.rules.book.product_chains import product_chains
from relax_eg.rules.book.quantised import quantised
from relax_eg.rules.book.recognised import recognised
from relax_eg.rules.book.reduction import reduction
from relax_eg.rules.book.reductions import reductions
from relax_eg.rules.book.semirings import semirings
from relax_eg.rules.book.splitting import splitting
from relax_eg.rules.book.sum_products import sum_products
from relax_eg.rules.book.sums import sums
from relax_eg.rules.book.systems import systems
from relax_eg.rules.book.traced import traced
from relax_eg.rules.book.values import values
from relax_eg.rules.book.windows import windows
from relax_eg.rules.book.workspace import workspace
from relax_eg.rules.rule_set import RuleSet

algebra = RuleSet(
    "algebra", [*contraction, *blocks, *convolution, *attention, *reduction, *orders, *traced, *elementwise]
)
libraries = RuleSet("libraries", [*calls, *forms])
default = RuleSet(
    "default",
    [*algebra, *movement, *values, *systems, *layout, *libraries],
    (
        *broadcasts.schemas,
        *index_maps.schemas,
        *systems.schemas,
        *windows.schemas,
        *sum_products.schemas,
        *product_chains.schemas,
        *semirings.schemas,
        *reductions.schemas,
        *pointwise.schemas,
        *sums.schemas,
        *functions.schemas,
        *fusion.schemas,
        *splitting.schemas,
        *decoding.schemas,
        *quantised.schemas,
        *pieces.schemas,
        *inputs.schemas,
        *networks.schemas,
    ),
)
# Every rule and schema with a verdict on file.
everything = (*default, *default.schemas, *recognised, *recognised.schemas, *legalization.schemas, *workspace.schemas)

__all__ = [
    "algebra",
    "attention",
    "blocks",
    "broadcasts",
    "contraction",
    "convolution",
    "decoding",
    "default",
    "elementwise",
    "functions",
    "fusion",
    "index_maps",
    "inputs",
    "layout",
    "legalization",
    "libraries",
    "movement",
    "networks",
    "orders",
    "pieces",
    "pointwise",
    "product_chains",
    "quantised",
    "recognised",
    "reduction",
    "reductions",
    "semirings",
    "splitting",
    "sum_products",
    "sums",
    "systems",
    "traced",
    "values",
    "windows",
    "workspace",
]
