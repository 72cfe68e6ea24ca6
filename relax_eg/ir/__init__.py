"""Expressions, annotations and modules; their text form; the well-formedness rules."""

from relax_eg.ir.annotations import (
    Annotation,
    Callable,
    Never,
    Object,
    Ref,
    Shape,
    Tensor,
    Tuple,
    TypeVar,
    dims_of,
    substitute,
)
from relax_eg.ir.calls import call_annotation, call_function, function_ref
from relax_eg.ir.control import (
    attributes_of_control,
    cond,
    deduce_control,
    functions_of,
    while_loop,
)
from relax_eg.ir.expr import (
    CALL,
    CALL_DPS_LIBRARY,
    CALL_TIR,
    COND,
    CONSTANT,
    FUNCTION,
    MATCH_CAST,
    SCAN,
    SHAPE,
    SHARD_MAP,
    TUPLE,
    TUPLE_GET,
    VAR,
    Attrs,
    ConstantData,
    Expr,
    call_dps_library,
    const,
    match_cast,
    node,
    postorder,
    shape_value,
    tuple_,
    tuple_get,
    var,
)
from relax_eg.ir.foreign import Foreign
from relax_eg.ir.heads import CONTROL
from relax_eg.ir.memory import alloc_storage, alloc_tensor, call_into, kill
from relax_eg.ir.module import Binding, Block, Function, Module, pure_function
from relax_eg.ir.parser import parse_module
from relax_eg.ir.steps import impure_functions
from relax_eg.ir.tensor_calls import call_tir
from relax_eg.ir.wellformed import check
