"""Constructs of Relax's script language, each as lines that make a tensor `{y}` of a tensor `{x}`.

Both are `R.Tensor(("n", 8), "float32")`. A construct may need definitions beside the function that uses it. All texts
are our own; the constructs are those that the public documentation and tests of the language use.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Construct:
    """A construct of the language.

    - `group`: the part of the language.
    - `name`: what it is, in one line.
    - `lines`: statements that bind `{y}` to a tensor of `{x}`'s shape and dtype; `{p}` begins further names.
    - `definitions`: functions and tensor programs of the module that it needs.
    - `dataflow`: whether it may stand in a dataflow block.
    """

    group: str
    name: str
    lines: str
    definitions: str = ""
    dataflow: bool = True


def _simple(group: str, template: str, names: str, **more: bool) -> list[Construct]:
    return [Construct(group, n, f"{{y}} = {template.replace('@', n)}", **more) for n in names.split()]


_ELEMENTWISE = (
    "R.abs R.acos R.acosh R.asin R.asinh R.atan R.atanh R.bitwise_not R.ceil R.cos R.cosh R.exp R.floor R.log "
    "R.negative R.round R.rsqrt R.sigmoid R.sign R.sin R.sinh R.square R.sqrt R.tan R.tanh R.trunc R.erf R.nn.relu "
    "R.nn.gelu R.nn.gelu_tanh R.nn.silu R.nn.selu R.nn.softmax R.nn.log_softmax R.nn.relu6 R.nn.leakyrelu "
    "R.nn.softplus"
)
_BINARY = "R.add R.subtract R.multiply R.divide R.power R.maximum R.minimum R.mod R.floor_divide R.floor_mod R.atan2"
_COMPARED = "R.equal R.not_equal R.less R.less_equal R.greater R.greater_equal"
_TESTED = "R.isnan R.isfinite R.isinf"
_REDUCED = "R.sum R.mean R.max R.min R.prod R.variance R.std"
_SHAPED = "R.zeros_like R.ones_like R.tril R.triu R.nn.dropout"

_OPERATORS: list[Construct] = [
    *_simple("operators", "@({x})", " ".join(n for n in _ELEMENTWISE.split() if n != "R.bitwise_not")),
    *_simple("operators", '@(R.abs({x}), R.const(1.5, "float32"))', _BINARY),
    *_simple("operators", '@({x}, R.const(0.25, "float32")).astype("float32")', ""),
    *[
        Construct("operators", n, f'{{p}} = {n}({{x}}, R.const(0.25, "float32"))\n{{y}} = R.astype({{p}}, "float32")')
        for n in _COMPARED.split()
    ],
    *[
        Construct("operators", n, f"{{p}} = {n}({{x}})\n{{y}} = R.where({{p}}, R.zeros_like({{x}}), {{x}})")
        for n in _TESTED.split()
    ],
    *[
        Construct("operators", n, f"{{p}} = {n}({{x}}, axis=[1], keepdims=True)\n{{y}} = R.add({{x}}, {{p}})")
        for n in _REDUCED.split()
    ],
    *_simple("operators", "@({x})", "R.zeros_like R.ones_like R.tril R.triu R.nn.softmax"),
    Construct("operators", "R.nn.dropout", "{p} = R.nn.dropout({x}, rate=0.5)\n{y} = {p}[0]"),
    Construct("operators", "R.clip", "{y} = R.clip({x}, -0.5, 0.5)"),
    Construct("operators", "R.cumsum", "{y} = R.cumsum({x}, axis=1)"),
    Construct("operators", "R.cumprod", "{y} = R.cumprod({x}, axis=1)"),
    Construct("operators", "R.permute_dims", "{p} = R.permute_dims({x}, axes=[1, 0])\n{y} = R.permute_dims({p})"),
    Construct("operators", "R.reshape", "{p} = R.reshape({x}, R.shape([n * 8]))\n{y} = R.reshape({p}, (n, 8))"),
    Construct("operators", "R.flatten", "{p} = R.flatten({x})\n{y} = R.reshape({p}, R.shape([n, 8]))"),
    Construct("operators", "R.expand_dims", "{p} = R.expand_dims({x}, axis=[0])\n{y} = R.squeeze({p}, axis=[0])"),
    Construct(
        "operators",
        "R.concat",
        "{p} = R.concat(({x}, {x}), axis=1)\n{y} = R.strided_slice({p}, axes=[1], begin=[4], end=[12])",
    ),
    Construct("operators", "R.stack", "{p} = R.stack(({x}, {x}), axis=0)\n{y} = R.sum({p}, axis=[0])"),
    Construct("operators", "R.split", "{p} = R.split({x}, 2, axis=1)\n{y} = R.concat(({p}[1], {p}[0]), axis=1)"),
    Construct(
        "operators", "R.split at indices", "{p} = R.split({x}, [3], axis=1)\n{y} = R.concat(({p}[1], {p}[0]), axis=1)"
    ),
    Construct(
        "operators",
        "R.strided_slice",
        "{p} = R.strided_slice({x}, axes=[1], begin=[0], end=[8], strides=[2])\n{y} = R.concat(({p}, {p}), axis=1)",
    ),
    Construct("operators", "R.flip", "{y} = R.flip({x}, axis=1)"),
    Construct(
        "operators", "R.tile", "{p} = R.tile({x}, (1, 2))\n{y} = R.strided_slice({p}, axes=[1], begin=[0], end=[8])"
    ),
    Construct(
        "operators",
        "R.repeat",
        "{p} = R.repeat({x}, 2, axis=1)\n{y} = R.strided_slice({p}, axes=[1], begin=[0], end=[16], strides=[2])",
    ),
    Construct("operators", "R.broadcast_to", "{p} = R.sum({x}, axis=[0])\n{y} = R.broadcast_to({p}, R.shape([n, 8]))"),
    Construct("operators", "R.take", '{y} = R.take({x}, R.const([7, 6, 5, 4, 3, 2, 1, 0], "int64"), axis=1)'),
    Construct(
        "operators", "R.gather_elements", "{p} = R.argsort({x}, axis=1)\n{y} = R.gather_elements({x}, {p}, axis=1)"
    ),
    Construct(
        "operators",
        "R.scatter_elements",
        '{p} = R.argsort({x}, axis=1, dtype="int64")\n{y} = R.scatter_elements({x}, {p}, R.exp({x}), axis=1)',
    ),
    Construct("operators", "R.sort", "{y} = R.sort({x}, axis=1, descending=True)"),
    Construct(
        "operators",
        "R.argmax",
        '{p} = R.argmax({x}, axis=1, keepdims=True)\n{y} = R.add({x}, R.astype({p}, "float32"))',
    ),
    Construct("operators", "R.topk", '{p} = R.topk({x}, k=8, axis=1, ret_type="values")\n{y} = R.add({p}, {x})'),
    Construct(
        "operators",
        "R.full",
        '{p} = R.full(R.shape([n, 8]), R.const(2.0, "float32"), dtype="float32")\n{y} = R.multiply({x}, {p})',
    ),
    Construct(
        "operators", "R.full_like", '{p} = R.full_like({x}, R.const(2.0, "float32"))\n{y} = R.multiply({x}, {p})'
    ),
    Construct("operators", "R.zeros", '{p} = R.zeros(R.shape([n, 8]), "float32")\n{y} = R.add({x}, {p})'),
    Construct("operators", "R.ones", '{p} = R.ones((n, 8), dtype="float32")\n{y} = R.add({x}, {p})'),
    Construct("operators", "R.arange", '{p} = R.arange(0, 8, 1, "float32")\n{y} = R.add({x}, {p})'),
    Construct("operators", "R.eye", '{p} = R.eye(8, 8, 0, "float32")\n{y} = R.matmul({x}, {p})'),
    Construct(
        "operators",
        "R.one_hot",
        "{p} = R.argmax({x}, axis=1)\n{y} = R.one_hot({p}, R.prim_value(1.0), R.prim_value(0.0), depth=8, axis=-1)",
    ),
    Construct(
        "operators", "R.matmul", '{p} = R.matmul(R.permute_dims({x}), {x})\n{y} = R.matmul({x}, {p}, out_dtype="void")'
    ),
    Construct("operators", "R.linear", "{p} = R.matmul(R.permute_dims({x}), {x})\n{y} = R.linear({x}, {p})"),
    Construct("operators", "R.einsum", '{p} = R.einsum(({x}, {x}), "ij,ik->jk")\n{y} = R.matmul({x}, {p})'),
    Construct(
        "operators", "R.outer", "{p} = R.outer(R.sum({x}, axis=[1]), R.sum({x}, axis=[0]))\n{y} = R.multiply({x}, {p})"
    ),
    Construct("operators", "R.ewise_fma", "{y} = R.ewise_fma({x}, {x}, {x})"),
    Construct(
        "operators",
        "R.where",
        '{p} = R.greater({x}, R.const(0.0, "float32"))\n{y} = R.where({p}, {x}, R.negative({x}))',
    ),
    Construct(
        "operators",
        "R.logical_and",
        '{p} = R.greater({x}, R.const(0.0, "float32"))\n{y} = R.where(R.logical_and({p}, R.logical_not({p})), {x}, R.exp({x}))',
    ),
    Construct("operators", "R.collapse_sum_to", "{p} = R.collapse_sum_to({x}, R.shape([1, 8]))\n{y} = R.add({x}, {p})"),
    Construct("operators", "R.wrap_param", '{y} = R.wrap_param({x}, "float32")'),
    Construct("operators", "R.stop_lift_params", "{y} = R.builtin.stop_lift_params({x})"),
    Construct(
        "operators",
        "R.nn.layer_norm",
        '{p} = R.ones((8,), "float32")\n{y} = R.nn.layer_norm({x}, {p}, R.zeros((8,), "float32"), axes=[-1], epsilon=1e-05)',
    ),
    Construct(
        "operators",
        "R.nn.rms_norm",
        '{p} = R.ones((8,), "float32")\n{y} = R.nn.rms_norm({x}, {p}, axes=[-1], epsilon=1e-05)',
    ),
    Construct(
        "operators",
        "R.nn.group_norm",
        '{p} = R.ones((8,), "float32")\n{y} = R.nn.group_norm({x}, {p}, {p}, num_groups=2, channel_axis=1, axes=[], epsilon=1e-05)',
    ),
    Construct(
        "operators",
        "R.nn.batch_norm",
        '{p} = R.ones((8,), "float32")\n{p}b = R.nn.batch_norm({x}, {p}, {p}, {p}, {p}, axis=1)\n{y} = {p}b[0]',
    ),
    Construct(
        "operators",
        "R.nn.pad",
        "{p} = R.nn.pad({x}, pad_width=[0, 0, 1, 1])\n{y} = R.strided_slice({p}, axes=[1], begin=[0], end=[8])",
    ),
    Construct(
        "operators",
        "R.nn.attention",
        "{p} = R.reshape({x}, (n, 2, 2, 2))\n{y} = R.reshape(R.nn.attention({p}, {p}, {p}), (n, 8))",
    ),
    Construct(
        "operators",
        "R.nn.conv2d",
        '{p} = R.reshape({x}, (n, 2, 2, 2))\n{p}w = R.ones((2, 2, 3, 3), "float32")\n{y} = R.reshape(R.nn.conv2d({p}, {p}w, strides=[1, 1], padding=[1, 1, 1, 1], data_layout="NCHW", kernel_layout="OIHW"), (n, 8))',
    ),
    Construct(
        "operators",
        "R.nn.conv1d",
        '{p} = R.reshape({x}, (n, 2, 4))\n{p}w = R.ones((2, 2, 3), "float32")\n{y} = R.reshape(R.nn.conv1d({p}, {p}w, padding=1), (n, 8))',
    ),
    Construct(
        "operators",
        "R.nn.max_pool2d",
        "{p} = R.reshape({x}, (n, 2, 2, 2))\n{y} = R.reshape(R.nn.max_pool2d({p}, pool_size=[3, 3], strides=[1, 1], padding=[1, 1, 1, 1]), (n, 8))",
    ),
    Construct(
        "operators",
        "R.nn.avg_pool2d",
        "{p} = R.reshape({x}, (n, 2, 2, 2))\n{y} = R.reshape(R.nn.avg_pool2d({p}, pool_size=[1, 1]), (n, 8))",
    ),
    Construct(
        "operators",
        "R.nn.adaptive_avg_pool2d",
        "{p} = R.reshape({x}, (n, 2, 2, 2))\n{y} = R.add({x}, R.reshape(R.tile(R.nn.adaptive_avg_pool2d({p}, [1, 1]), (1, 1, 2, 2)), (n, 8)))",
    ),
    Construct(
        "operators",
        "R.nn.cross_entropy_with_logits",
        "{p} = R.nn.cross_entropy_with_logits({x}, {x})\n{y} = R.add({x}, {p})",
    ),
    Construct("operators", "R.nn.prelu", '{y} = R.nn.prelu({x}, R.ones((8,), "float32"), axis=1)'),
    Construct(
        "operators",
        "R.nn.pixel_shuffle",
        "{p} = R.reshape({x}, (n, 8, 1, 1))\n{y} = R.reshape(R.nn.pixel_shuffle({p}, 2), (n, 8))",
    ),
    Construct(
        "operators",
        "R.image.resize2d",
        '{p} = R.reshape({x}, (n, 2, 2, 2))\n{y} = R.add({x}, R.reshape(R.image.resize2d({p}, (2, 2), layout="NCHW", method="nearest_neighbor", coordinate_transformation_mode="asymmetric"), (n, 8)))',
    ),
    Construct("operators", "R.op.name", "{y} = R.op.add(R.op.exp({x}), R.op.nn.relu({x}))"),
    Construct("operators", "R.astype", '{p} = R.astype({x}, "float16")\n{y} = R.astype({p}, dtype="float32")'),
    Construct("operators", "infix arithmetic", "{y} = ({x} + {x}) * {x} - {x} / 2.0"),
]

_ANNOTATIONS = [
    Construct("annotations", "R.Tensor of names and sizes", '{y}: R.Tensor((n, 8), "float32") = R.exp({x})'),
    Construct(
        "annotations",
        "rank only",
        '{p}: R.Tensor(dtype="float32", ndim=2) = R.exp({x})\n{y} = R.match_cast({p}, R.Tensor((n, 8), "float32"))',
    ),
    Construct(
        "annotations",
        "dtype first",
        '{p}: R.Tensor("float32", ndim=2) = R.exp({x})\n{y} = R.match_cast({p}, R.Tensor((n, 8), "float32"))',
    ),
    Construct(
        "annotations",
        "R.Tensor alone",
        '{p}: R.Tensor = R.exp({x})\n{y} = R.match_cast({p}, R.Tensor((n, 8), "float32"))',
    ),
    Construct(
        "annotations", "R.Object", '{p}: R.Object = R.exp({x})\n{y} = R.match_cast({p}, R.Tensor((n, 8), "float32"))'
    ),
    Construct(
        "annotations",
        "arithmetic on sizes",
        '{p}: R.Tensor((n * 8,), "float32") = R.reshape({x}, R.shape([n * 8]))\n{y} = R.reshape({p}, R.shape([n, 8]))',
    ),
    Construct(
        "annotations",
        "T.int64 of a number",
        '{p}: R.Tensor((n * T.int64(8),), "float32") = R.reshape({x}, R.shape([n * T.int64(8)]))\n{y} = R.reshape({p}, R.shape([n, T.int64(8)]))',
    ),
    Construct("annotations", "a virtual device", '{y}: R.Tensor((n, 8), "float32", "llvm:0") = R.exp({x})'),
    Construct("annotations", "R.to_vdevice", '{y} = R.to_vdevice({x}, "llvm:0")'),
    Construct("annotations", "R.hint_on_device", "{y} = R.hint_on_device({x}, R.cpu(0))"),
    Construct(
        "annotations",
        "R.Tuple of a list",
        '{p}: R.Tuple([R.Tensor((n, 8), "float32"), R.Tensor((n, 8), "float32")]) = ({x}, R.exp({x}))\n{y} = {p}[1]',
    ),
    Construct("annotations", "R.tuple", "{p} = R.tuple({x}, R.exp({x}))\n{y} = {p}[1]"),
    Construct("annotations", "a name bound again", "{y} = R.exp({x})\n{y} = R.tanh({y})"),
]

_SIZES = [
    Construct("sizes", "match_cast of known sizes", '{y} = R.match_cast(R.exp({x}), R.Tensor((n, 8), "float32"))'),
    Construct(
        "sizes",
        "match_cast of new sizes",
        '{p}m = T.int64()\n{p} = R.match_cast(R.exp({x}), R.Tensor(({p}m, 8), "float32"))\n{y} = R.match_cast({p}, R.Tensor((n, 8), "float32"))',
    ),
    Construct(
        "sizes",
        "R.shape and R.reshape",
        "{p} = R.shape([n * 2, 4])\n{y} = R.reshape(R.reshape({x}, {p}), R.shape([n, 8]))",
    ),
    Construct("sizes", "R.shape_of", "{p} = R.shape_of({x})\n{y} = R.reshape(R.exp({x}), {p})"),
    Construct(
        "sizes",
        "R.shape_to_tensor",
        '{p} = R.shape_to_tensor(R.shape([n, 8]))\n{y} = R.add({x}, R.astype(R.sum({p}), "float32"))',
    ),
    Construct(
        "sizes",
        "R.tensor_to_shape",
        '{p} = R.tensor_to_shape(R.const([2, 4], "int64"))\n{p}v = R.reshape(R.strided_slice(R.flatten({x}), axes=[0], begin=[0], end=[8]), {p})\n{p}c = R.match_cast({p}v, R.Tensor((2, 4), "float32"))\n{y} = R.add({x}, R.reshape({p}c, (8,)))',
    ),
    Construct("sizes", "R.prim_value of a number", "{p} = R.prim_value(3)\n{y} = R.exp({x})"),
    Construct("sizes", "R.prim_value of a size", "{p} = R.prim_value(n + 1)\n{y} = R.exp({x})"),
    Construct(
        "sizes",
        "R.Prim as a parameter",
        "{y} = cls.{p}f({x}, R.prim_value(8))",
        '@R.function\ndef {p}f(a: R.Tensor(("m", 8), "float32"), k: R.Prim("int64")) -> R.Tensor(("m", 8), "float32"):\n    return R.exp(a)',
    ),
    Construct(
        "sizes",
        "R.Prim of a value",
        "{y} = R.add({x}, cls.{p}f({x}, R.prim_value(8)))",
        '@R.function\ndef {p}f(a: R.Tensor(("m", 8), "float32"), k: R.Prim(value="q")) -> R.Tensor(("m", "q"), "float32"):\n    q = T.int64()\n    m = T.int64()\n    return R.full(R.shape([m, q]), R.const(2.0, "float32"), dtype="float32")',
    ),
    Construct(
        "sizes",
        "R.Shape as a parameter",
        "{y} = cls.{p}f({x}, R.shape([n, 8]))",
        '@R.function\ndef {p}f(a: R.Tensor(ndim=2, dtype="float32"), s: R.Shape(["m", 8])) -> R.Tensor(("m", 8), "float32"):\n    m = T.int64()\n    return R.match_cast(R.exp(a), R.Tensor((m, 8), "float32"))',
    ),
    Construct(
        "sizes",
        "R.unique",
        "{p} = R.unique({x}, sorted=True, return_index=False, return_inverse=False, return_counts=False)\n{p}s = R.sum({p})\n{y} = R.add({x}, {p}s)",
    ),
    Construct("sizes", "R.nonzero", '{p} = R.nonzero({x})\n{y} = R.add({x}, R.astype(R.sum({p}), "float32"))'),
    Construct(
        "sizes",
        "T.min and T.max of sizes",
        "{p} = R.strided_slice({x}, axes=[0], begin=[0], end=[T.min(n, 2)])\n{y} = R.add({x}, R.sum({p}, axis=[0]))",
    ),
]

_CALLS = [
    Construct(
        "calls",
        "a function of the module",
        "{y} = cls.{p}f({x})",
        '@R.function\ndef {p}f(a: R.Tensor(("m", 8), "float32")) -> R.Tensor(("m", 8), "float32"):\n    return R.exp(a)',
    ),
    Construct(
        "calls",
        "a private function",
        "{y} = cls.{p}f({x})",
        '@R.function(private=True)\ndef {p}f(a: R.Tensor(("m", 8), "float32")) -> R.Tensor(("m", 8), "float32"):\n    return R.exp(a)',
    ),
    Construct(
        "calls",
        "a function with attributes",
        "{y} = cls.{p}f({x})",
        '@R.function\ndef {p}f(a: R.Tensor(("m", 8), "float32")) -> R.Tensor(("m", 8), "float32"):\n    R.func_attr({{"Primitive": True, "Composite": "our.exp", "num_input": 1}})\n    return R.exp(a)',
    ),
    Construct(
        "calls",
        "a nested function",
        '@R.function\ndef {p}(a: R.Tensor((n, 8), "float32")) -> R.Tensor((n, 8), "float32"):\n    return R.exp(a)\n{y} = {p}({x})',
        dataflow=False,
    ),
    Construct(
        "calls",
        "a nested function that reads outside",
        '@R.function\ndef {p}(a: R.Tensor((n, 8), "float32")) -> R.Tensor((n, 8), "float32"):\n    return R.add(a, {x})\n{y} = {p}({x})',
        dataflow=False,
    ),
    Construct(
        "calls",
        "a nested function with steps",
        '@R.function(pure=False)\ndef {p}(a: R.Tensor((n, 8), "float32")) -> R.Tensor((n, 8), "float32"):\n    b = R.exp(a)\n    _ = R.print(b, format="{{}}")\n    return b\n{y} = {p}({x})',
        dataflow=False,
    ),
    Construct(
        "calls",
        "R.make_closure and R.invoke_closure",
        '{p} = R.make_closure(cls.{p}f, ({x},))\n{y} = R.invoke_closure({p}, ({x},), sinfo_args=(R.Tensor((n, 8), "float32"),))',
        '@R.function\ndef {p}f(a: R.Tensor(("m", 8), "float32"), b: R.Tensor(("m", 8), "float32")) -> R.Tensor(("m", 8), "float32"):\n    return R.add(a, b)',
        dataflow=False,
    ),
    Construct(
        "calls",
        "R.call_packed",
        '{y} = R.call_packed("bench.exp", {x}, sinfo_args=(R.Tensor((n, 8), "float32"),))',
        dataflow=False,
    ),
    Construct(
        "calls",
        "R.call_packed of one annotation",
        '{y} = R.call_packed("bench.exp", {x}, sinfo_args=R.Tensor((n, 8), dtype="float32"))',
        dataflow=False,
    ),
    Construct(
        "calls",
        "R.call_packed of a shape and text",
        '{y} = R.call_packed("bench.reshape", {x}, R.shape([n, 8]), R.str("C"), sinfo_args=R.Tensor((n, 8), dtype="float32"))',
        dataflow=False,
    ),
    Construct(
        "calls",
        "R.call_packed of an object",
        '{p}: R.Object = R.call_packed("bench.exp", {x}, sinfo_args=(R.Object,))\n{y} = R.match_cast({p}, R.Tensor((n, 8), "float32"))',
        dataflow=False,
    ),
    Construct(
        "calls",
        "R.call_pure_packed",
        '{y} = R.call_pure_packed("bench.exp", {x}, sinfo_args=(R.Tensor((n, 8), "float32"),))',
    ),
    Construct(
        "calls",
        "R.call_pure_packed with ty_args",
        '{y} = R.call_pure_packed("bench.exp", {x}, ty_args=R.Tensor((n, 8), "float32"))',
    ),
    Construct(
        "calls",
        "R.call_inplace_packed",
        '{p} = R.exp({x})\n{y} = R.call_inplace_packed("bench.double_in_place", {p}, inplace_indices=[0], sinfo_args=(R.Tensor((n, 8), "float32"),))',
    ),
    Construct(
        "calls",
        "R.call_dps_packed",
        '{y} = R.call_dps_packed("bench.exp_into", ({x},), out_sinfo=R.Tensor((n, 8), "float32"))',
    ),
    Construct(
        "calls",
        "R.call_dps_packed with out_ty",
        '{y} = R.call_dps_packed("bench.exp_into", {x}, out_ty=R.Tensor((n, 8), "float32"))',
    ),
    Construct(
        "calls",
        "R.ExternFunc",
        '{p} = R.ExternFunc("bench.exp")\n{y} = R.call_pure_packed({p}, {x}, sinfo_args=R.Tensor((n, 8), "float32"))',
        dataflow=False,
    ),
    Construct("calls", "R.print", '_ = R.print({x}, format="x is {{}}")\n{y} = R.exp({x})', dataflow=False),
    Construct("calls", "R.print without a name", "R.print({x})\n{y} = R.exp({x})", dataflow=False),
    Construct(
        "calls",
        "R.assert_op",
        '_ = R.assert_op(R.less(R.const(0, "int32"), R.const(1, "int32")), {x}, format="{{}}")\n{y} = R.exp({x})',
        dataflow=False,
    ),
    Construct(
        "calls",
        "recursion",
        '{y} = cls.{p}f({x}, R.const(3, "int32"))',
        '@R.function\ndef {p}f(a: R.Tensor(("m", 8), "float32"), i: R.Tensor((), "int32")) -> R.Tensor(("m", 8), "float32"):\n    if R.equal(i, R.const(0, "int32")):\n        r = R.exp(a)\n    else:\n        b = R.tanh(a)\n        j = R.subtract(i, R.const(1, "int32"))\n        r = cls.{p}f(b, j)\n    return r',
        dataflow=False,
    ),
    Construct(
        "calls",
        "R.Callable as a parameter",
        "{y} = cls.{p}g(cls.{p}f, {x})",
        '@R.function\ndef {p}f(a: R.Tensor(("m", 8), "float32")) -> R.Tensor(("m", 8), "float32"):\n    return R.exp(a)\n\n@R.function\ndef {p}g(f: R.Callable((R.Tensor(("m", 8), "float32"),), R.Tensor(("m", 8), "float32"), purity=True), a: R.Tensor(("m", 8), "float32")) -> R.Tensor(("m", 8), "float32"):\n    return f(a)',
        dataflow=False,
    ),
    Construct(
        "calls",
        "if and else",
        '{p} = R.less(R.sum({x}), R.const(0.5, "float32"))\nif {p}:\n    {y} = R.exp({x})\nelse:\n    {y} = R.tanh({x})',
        dataflow=False,
    ),
    Construct(
        "calls",
        "if with blocks inside",
        '{p} = R.less(R.sum({x}), R.const(0.5, "float32"))\nif {p}:\n    with R.dataflow():\n        {p}a = R.exp({x})\n        R.output({p}a)\n    {y} = {p}a\nelse:\n    {p}b = R.tanh({x})\n    {y} = {p}b',
        dataflow=False,
    ),
]

_EXP = """@T.prim_func
def {p}f(A: T.Buffer(({s}, T.int64(8)), "float32"), B: T.Buffer(({s}, T.int64(8)), "float32")):
    for i, j in T.grid({s}, T.int64(8)):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.reads(A[vi, vj])
            T.writes(B[vi, vj])
            B[vi, vj] = T.exp(A[vi, vj])"""
_HANDLES = """@T.prim_func(private=True)
def {p}f(a: T.handle, b: T.handle):
    T.func_attr({{"tir.noalias": T.bool(True)}})
    m = T.int64()
    A = T.match_buffer(a, (m, 8), "float32")
    B = T.match_buffer(b, (m, 8), dtype="float32")
"""


def _program(name: str, body: str, call: str = "", **more: bool) -> Construct:
    written = _HANDLES + "".join(f"    {line}\n" for line in body.split("\n"))
    made = call or '{y} = R.call_tir(cls.{p}f, ({x},), out_sinfo=R.Tensor((n, 8), dtype="float32"))'
    return Construct("tensor programs", name, made, written, **more)


_PROGRAMS = [
    _program(
        "T.grid, T.block and T.axis.remap",
        'for i, j in T.grid(m, 8):\n    with T.block("b"):\n        vi, vj = T.axis.remap("SS", [i, j])\n        T.reads(A[vi, vj])\n        T.writes(B[vi, vj])\n        B[vi, vj] = T.exp(A[vi, vj])',
    ),
    _program(
        "T.sblock",
        'for i, j in T.grid(m, 8):\n    with T.sblock("b"):\n        vi, vj = T.axis.remap("SS", [i, j])\n        B[vi, vj] = T.exp(A[vi, vj])',
    ),
    _program(
        "T.axis.spatial",
        'for i, j in T.grid(m, 8):\n    with T.block("b"):\n        vi = T.axis.spatial(m, i)\n        vj = T.axis.spatial(8, j)\n        B[vi, vj] = A[vi, vj] + T.float32(1.5)',
    ),
    _program(
        "T.serial and plain stores", "for i in T.serial(m):\n    for j in T.serial(8):\n        B[i, j] = A[i, j] * 2.0"
    ),
    _program("range", "for i in range(m):\n    for j in range(8):\n        B[i, j] = A[i, j] * T.float32(2)"),
    _program(
        "T.parallel and T.vectorized",
        "for i in T.parallel(m):\n    for j in T.vectorized(8):\n        B[i, j] = T.max(A[i, j], T.float32(0))",
    ),
    _program(
        "T.thread_binding",
        'for i in T.thread_binding(m, thread="blockIdx.x"):\n    for j in T.thread_binding(8, thread="threadIdx.x"):\n        B[i, j] = T.sqrt(T.abs(A[i, j]))',
    ),
    _program(
        "T.axis.reduce and T.init",
        'C = T.alloc_buffer((m,), "float32")\nfor i, k in T.grid(m, 8):\n    with T.block("c"):\n        vi, vk = T.axis.remap("SR", [i, k])\n        with T.init():\n            C[vi] = T.float32(0)\n        C[vi] = C[vi] + A[vi, vk]\nfor i, j in T.grid(m, 8):\n    with T.block("b"):\n        vi, vj = T.axis.remap("SS", [i, j])\n        B[vi, vj] = A[vi, vj] + C[vi]',
    ),
    _program(
        "a maximum",
        'C = T.alloc_buffer((m,))\nfor i, k in T.grid(m, 8):\n    with T.block("c"):\n        vi = T.axis.spatial(m, i)\n        vk = T.axis.reduce(8, k)\n        with T.init():\n            C[vi] = T.min_value("float32")\n        C[vi] = T.max(C[vi], A[vi, vk])\nfor i, j in T.grid(m, 8):\n    with T.block("b"):\n        vi, vj = T.axis.remap("SS", [i, j])\n        B[vi, vj] = T.exp(A[vi, vj] - C[vi])',
    ),
    _program(
        "a product of matrices",
        'C = T.alloc_buffer((8, 8), "float32")\nfor i, j, k in T.grid(8, 8, m):\n    with T.block("c"):\n        vi, vj, vk = T.axis.remap("SSR", [i, j, k])\n        with T.init():\n            C[vi, vj] = T.float32(0)\n        C[vi, vj] = C[vi, vj] + A[vk, vi] * A[vk, vj]\nfor i, j, k in T.grid(m, 8, 8):\n    with T.block("b"):\n        vi, vj, vk = T.axis.remap("SSR", [i, j, k])\n        with T.init():\n            B[vi, vj] = T.float32(0)\n        B[vi, vj] = B[vi, vj] + A[vi, vk] * C[vk, vj]',
    ),
    _program("T.if_then_else", "for i, j in T.grid(m, 8):\n    B[i, j] = T.if_then_else(j < 4, A[i, j], T.float32(0))"),
    _program(
        "T.Select and T.Cast",
        'for i, j in T.grid(m, 8):\n    B[i, j] = T.Select(j % 2 == 0, A[i, j], T.Cast("float32", j))',
    ),
    _program(
        "split loops",
        'for i, jo, ji in T.grid(m, 2, 4):\n    with T.block("b"):\n        vi = T.axis.spatial(m, i)\n        vj = T.axis.spatial(8, jo * 4 + ji)\n        B[vi, vj] = T.exp(A[vi, vj])',
    ),
    _program(
        "a fused loop",
        'for ij in range(m * 8):\n    with T.block("b"):\n        vi = T.axis.spatial(m, ij // 8)\n        vj = T.axis.spatial(8, ij % 8)\n        B[vi, vj] = T.exp(A[vi, vj])',
    ),
    _program("a local value", "for i, j in T.grid(m, 8):\n    v = A[i, j]\n    B[i, j] = v * v"),
    _program(
        "a program that is no index equation",
        "for i in range(m):\n    for j in range(8):\n        B[i, j] = A[i, j]\n    for j in range(7):\n        B[i, j + 1] = B[i, j + 1] + B[i, j] * T.float32(0.5)",
    ),
    _program(
        "if and else",
        "for i, j in T.grid(m, 8):\n    if j < 4:\n        B[i, j] = A[i, j]\n    else:\n        B[i, j] = -A[i, j]",
    ),
    _program(
        "a while loop",
        "for i, j in T.grid(m, 8):\n    B[i, j] = T.abs(A[i, j])\n    while B[i, j] < T.float32(4):\n        B[i, j] = B[i, j] * T.float32(2) + T.float32(1)",
    ),
    _program(
        "a store in place",
        "for i, j in T.grid(m, 8):\n    A[i, j] = A[i, j] * T.float32(2)\n    B[i, j] = A[i, j] + T.float32(1)",
    ),
    Construct(
        "tensor programs",
        "T.Buffer parameters",
        '{y} = R.call_tir(cls.{p}f, ({x},), out_sinfo=R.Tensor((n, 8), dtype="float32"))',
        '@T.prim_func\ndef {p}f(A: T.Buffer((T.int64(2), T.int64(8)), "float32"), B: T.Buffer((T.int64(2), T.int64(8)), "float32")):\n    for i, j in T.grid(T.int64(2), T.int64(8)):\n        with T.block("b"):\n            vi, vj = T.axis.remap("SS", [i, j])\n            B[vi, vj] = T.exp(A[vi, vj])',
    ),
    Construct(
        "tensor programs",
        "out_ty",
        '{y} = R.call_tir(cls.{p}f, ({x},), out_ty=R.Tensor((n, 8), "float32"))',
        _HANDLES + "    for i, j in T.grid(m, 8):\n        B[i, j] = T.exp(A[i, j])\n",
    ),
    Construct(
        "tensor programs",
        "one argument without a tuple",
        '{y} = R.call_tir(cls.{p}f, {x}, out_sinfo=R.Tensor((n, 8), "float32"))',
        _HANDLES + "    for i, j in T.grid(m, 8):\n        B[i, j] = T.exp(A[i, j])\n",
    ),
    Construct(
        "tensor programs",
        "tir_vars",
        '{y} = R.call_tir(cls.{p}f, ({x},), out_sinfo=R.Tensor((n, 8), "float32"), tir_vars=R.shape([n]))',
        '@T.prim_func\ndef {p}f(a: T.handle, b: T.handle, m: T.int64):\n    A = T.match_buffer(a, (m, 8), "float32")\n    B = T.match_buffer(b, (m, 8), "float32")\n    for i, j in T.grid(m, 8):\n        B[i, j] = T.exp(A[i, j])',
    ),
    Construct(
        "tensor programs",
        "sizes of the result alone",
        '{p} = R.call_tir(cls.{p}f, (), out_sinfo=R.Tensor((n, 8), "float32"))\n{y} = R.add({x}, {p})',
        '@T.prim_func\ndef {p}f(b: T.handle):\n    m = T.int64()\n    B = T.match_buffer(b, (m, 8), "float32")\n    for i, j in T.grid(m, 8):\n        B[i, j] = T.float32(3)',
    ),
    Construct(
        "tensor programs",
        "several results",
        '{p} = R.call_tir(cls.{p}f, ({x},), out_sinfo=[R.Tensor((n, 8), "float32"), R.Tensor((n, 8), "float32")])\n{y} = R.add({p}[0], {p}[1])',
        '@T.prim_func\ndef {p}f(a: T.handle, b: T.handle, c: T.handle):\n    m = T.int64()\n    A = T.match_buffer(a, (m, 8), "float32")\n    B = T.match_buffer(b, (m, 8), "float32")\n    C = T.match_buffer(c, (m, 8), "float32")\n    for i, j in T.grid(m, 8):\n        B[i, j] = T.exp(A[i, j])\n    for i, j in T.grid(m, 8):\n        C[i, j] = A[i, j] * T.float32(2)',
    ),
    Construct(
        "tensor programs",
        "R.call_tir_inplace",
        '{p} = R.exp({x})\n{y} = R.call_tir_inplace(cls.{p}f, ({p},), inplace_indices=[0], out_sinfo=[R.Tensor((n, 8), "float32")])',
        '@T.prim_func\ndef {p}f(a: T.handle):\n    m = T.int64()\n    A = T.match_buffer(a, (m, 8), "float32")\n    for i, j in T.grid(m, 8):\n        A[i, j] = A[i, j] + T.float32(1)',
    ),
    Construct(
        "tensor programs",
        "T.let and T.bool",
        '{y} = R.call_tir(cls.{p}f, ({x},), out_sinfo=R.Tensor((n, 8), "float32"))',
        _HANDLES
        + "    for i, j in T.grid(m, 8):\n        B[i, j] = T.Select(T.bool(True), T.tanh(A[i, j]), T.float32(0))\n",
    ),
]

_MEMORY = [
    Construct(
        "memory",
        "R.builtin.alloc_tensor",
        '{p} = R.builtin.alloc_tensor(R.shape([n, 8]), R.dtype("float32"), R.prim_value(0))\ncls.{p}f({x}, {p})\n{y} = {p}',
        _HANDLES + "    for i, j in T.grid(m, 8):\n        B[i, j] = T.exp(A[i, j])\n",
        dataflow=False,
    ),
    Construct(
        "memory",
        "R.memory.alloc_storage",
        '{p}s = R.memory.alloc_storage(R.shape([n * 32]), virtual_device_index=R.prim_value(0), storage_scope="global", dtype="uint8")\n{p} = R.memory.alloc_tensor({p}s, R.prim_value(0), R.shape([n, 8]), dtype="float32")\n_ = cls.{p}f({x}, {p})\n{y} = R.add({p}, {p})\nR.memory.kill_tensor({p})\nR.memory.kill_storage({p}s)',
        _HANDLES + "    for i, j in T.grid(m, 8):\n        B[i, j] = T.exp(A[i, j])\n",
        dataflow=False,
    ),
    Construct(
        "memory",
        "R.vm.alloc_storage",
        '{p}s = R.vm.alloc_storage(R.shape([n * 32]), R.prim_value(0), R.dtype("uint8"))\n{p} = R.vm.alloc_tensor({p}s, R.prim_value(0), R.shape([n, 8]), R.dtype("float32"))\n_ = cls.{p}f({x}, {p})\n{y} = R.add({p}, {p})\n_1 = R.vm.kill_object({p})',
        _HANDLES + "    for i, j in T.grid(m, 8):\n        B[i, j] = T.exp(A[i, j])\n",
        dataflow=False,
    ),
    Construct(
        "memory",
        "R.vm.call_tir_dyn",
        '{p} = R.builtin.alloc_tensor(R.shape([n, 8]), R.dtype("float32"), R.prim_value(0))\n_ = R.vm.call_tir_dyn(cls.{p}f, ({x}, {p}, R.shape([n])))\n{y} = {p}',
        '@T.prim_func\ndef {p}f(a: T.handle, b: T.handle, m: T.int64):\n    A = T.match_buffer(a, (m, 8), "float32")\n    B = T.match_buffer(b, (m, 8), "float32")\n    for i, j in T.grid(m, 8):\n        B[i, j] = T.exp(A[i, j])',
        dataflow=False,
    ),
]

CONSTRUCTS: tuple[Construct, ...] = tuple(
    {(c.group, c.name): c for c in (*_OPERATORS, *_ANNOTATIONS, *_SIZES, *_CALLS, *_PROGRAMS, *_MEMORY)}.values()
)
