"""What exporters write into a file about its initializers, and what their names give away.

PyTorch's exporter (dynamo) says for each initializer whether it was a parameter or a buffer, and
for each folded constant the names it was folded from; its nodes name the module they belong to and
the tensors they read. PyTorch's older exporter says nothing; what it folds is named after the
reader (``onnx::MatMul_12``). :func:`onnxremat.export` writes the whole list into the metadata.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import onnx

from onnxremat.grad.exported.listed import parameters_of
from onnxremat.grad.exported.signature import BUFFER, PARAMETER, Listed, ends_of, signature_of

_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
PLACEHOLDER = "pkg.torch.onnx.original_node_name"
FOLDED = "pkg.onnxscript.optimizer.folded_from"
READS = "pkg.torch.onnx.fx_node"
SCOPES = "pkg.torch.onnx.name_scopes"
CODE = "pkg.torch.onnx.stack_trace"
SPECTRAL = "spectral norm"
KIND_OF = {"p_": PARAMETER, "b_": BUFFER}  # by how names in PyTorch's graph begin
_IN_CONV = re.compile(r"onnx::Conv\w*_\d+$")
_RULES = "pkg.onnxscript.rewriter.rule_name"

# Names that exporters make up: for constants of the code, and for what they fold.
_NAMELESS = re.compile(r"_?val_\d+$|onnx::|/|Constant|const_|\d+$|.*_output_\d+$")
# Last part of the names that libraries give to buffers.
_BUFFERS = """
running_mean running_var num_batches_tracked inv_freq original_inv_freq cos_cached sin_cached
freqs_cis freqs rope_freqs position_ids pos_ids relative_coords_table relative_position_index
rel_pos_index attn_mask attention_mask causal_mask mask masked_bias final_logits_bias
embed_scale sinusoid_inp filt blur_kernel alibi slopes window mel_filters pixel_mean pixel_std
anchors anchor_points
"""
BUFFERS = frozenset(_BUFFERS.split())
# Operators of PyTorch that move elements, that make tensors, and that change numbers: names of
# folded values begin with them.
_MOVES = """
t view reshape permute transpose expand expand_as unsqueeze squeeze slice select cat stack clone
alias detach index index_select embedding gather split split_with_sizes chunk unbind getitem
flatten repeat roll flip contiguous _to_copy to convert_element_type_default _unsafe_view
constant_pad_nd pad movedim tile lift_fresh_copy unflatten narrow meshgrid dropout type_as
view_as swapaxes rot90 tensor_split unsafe_split unsafe_chunk hsplit vsplit as_strided diagonal
broadcast_to repeat_interleave view_as_real view_as_complex take
"""
_MAKES = """
arange zeros ones full zeros_like ones_like full_like new_zeros new_ones linspace triu tril eq
ne gt lt ge le scalar_tensor empty new_full meshgrid fill value shape size sym_size
slice_scatter select_scatter scatter index_put copy
"""
_COMPUTES = """
cos sin exp log pow outer ger reciprocal mul div add sub neg sqrt rsqrt sigmoid softplus tanh
where masked_fill einsum matmul mm bmm abs clamp floor round remainder cumsum sum mean max min
linear addmm conv1d conv2d conv3d layer_norm group_norm batch_norm softmax relu gelu silu norm
var std prod square clamp_min clamp_max logical_not logical_and logical_or bitwise_not erf log1p
expm1
"""
_COPIES = """
expand expand_as repeat tile index index_select gather embedding broadcast_to repeat_interleave
take
"""
# Of these, what puts other numbers in the place of some of a parameter's: zeros, mostly.
_TRIANGLES = frozenset(("tril", "triu"))
_PUTS = """
slice_scatter select_scatter scatter index_put copy constant_pad_nd pad zeros new_zeros zeros_like
"""
_FILLS = _TRIANGLES.union(_PUTS.split())
# What makes whole numbers of a parameter's values, not of its sizes.
_PICKS = """
topk sort argsort argmax argmin max min searchsorted bucketize nonzero round floor ceil sign
median kthvalue
"""
_ORDERS = frozenset(_PICKS.split())
# What passes no gradient on, its derivative being 0; and what may be beside it.
_FLAT = """
sign sgn round floor ceil trunc eq ne gt ge lt le logical_not isnan isinf
"""
_BESIDE = """
_to_copy to convert_element_type_default type_as t view reshape permute transpose expand unsqueeze
squeeze clone alias contiguous flatten _unsafe_view scalar_tensor scalar_tensor_default detach
"""
_STEPS, _ALONE = frozenset(_FLAT.split()), frozenset(f"{_FLAT} {_BESIDE}".split())
_CUTS = "split unsafe_split chunk unsafe_chunk unbind tensor_split hsplit vsplit"
_WHOLE = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
_CUTTING = tuple(_CUTS.split())
_COPYING = frozenset(_COPIES.split())
_MOVING = frozenset(f"{_MOVES} {_MAKES}".split())
_COMPUTING = frozenset(_COMPUTES.split())
_RESULTS = frozenset(f"{_MOVES} {_MAKES} {_COMPUTES}".split())


def first_of(names: Sequence[str], count: int) -> str:
    """The first of some names, for a message."""
    return ", ".join(names[:count]) + ", ..." * (len(names) > count)


@dataclass(frozen=True)
class Marks:
    """What a file says about its initializers.

    Attributes:
        kinds: ``PARAMETER`` or ``BUFFER`` (and PyTorch's other kinds) by initializer.
        folded: names a folded initializer was made from, without those that exporters make up.
        copied: folded initializers that may hold an element of their parameter several times.
        computed: folded initializers whose numbers are not those of a parameter any more.
        stepped: folded initializers that are what was rounded or compared.
        filled: folded initializers in which zeros may stand where a parameter has no number; True
            where they are those beside a triangle.
        stopped: folded initializers on whose way gradients were stopped.
        chosen: parameters whose values decided what folded booleans and whole numbers are.
        placeholders: name of the initializer in PyTorch's graph, by initializer.
        signature: parameters and buffers of the module, by their names in PyTorch's graph.
        inputs, results: PyTorch's names of what its graph is given beside these, and hands out.
        norms: convolutions that a batch normalization was folded into.
        named: whether names that the exporter did not make up are the module's.
        trained, frozen, halted, buffers, resting: names listed by :func:`onnxremat.export`
            (``halted`` as stopped); None without a list.
    """

    kinds: Mapping[str, str] = field(default_factory=dict)
    folded: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    copied: frozenset[str] = frozenset()
    computed: frozenset[str] = frozenset()
    stepped: frozenset[str] = frozenset()
    filled: Mapping[str, bool] = field(default_factory=dict)
    stopped: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()
    placeholders: Mapping[str, str] = field(default_factory=dict)
    signature: Mapping[str, Listed] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    norms: tuple[str, ...] = ()
    named: bool = False
    trained: frozenset[str] | None = None
    frozen: frozenset[str] = frozenset()
    halted: frozenset[str] = frozenset()
    buffers: frozenset[str] = frozenset()
    resting: frozenset[str] = frozenset()

    def told_apart(
        self,
        tokens: Mapping[str, str],
        folded: Mapping[str, tuple[str, ...]],
        equal: Mapping[str, str],
    ) -> Marks:
        """The marks, and those of tensors that the exporter had merged.

        Args:
            tokens: names of PyTorch's graph, which say the kind, by tensor.
            folded: the parameters that a folded tensor was made from, by tensor.
            equal: what each of ``folded`` was merged with, made in the same way.
        """
        kinds = {name: KIND_OF[token[:2]] for name, token in tokens.items()}
        return replace(
            self,
            kinds={**self.kinds, **kinds},
            placeholders={**self.placeholders, **tokens},
            folded={**self.folded, **folded},
            computed=self.computed.union(n for n, other in equal.items() if other in self.computed),
        )

    def token_of(self, name: str) -> str:
        """What PyTorch's graph calls an initializer, or the only parameter or buffer that it was
        folded from; "" where that is not known."""
        if name in self.placeholders:
            return self.placeholders[name]
        known = self.tokens_of(name)
        return known[0] if len(known) == 1 else ""

    def tokens_of(self, name: str) -> list[str]:
        """What PyTorch's graph calls the parameters and buffers that an initializer was folded
        from."""
        return [self._tokens[n] for n in self.folded.get(name, ()) if n in self._tokens]

    def alike(self, one: str, other: str) -> bool:
        """Two names of PyTorch's graph are listed, and their tensors called alike in their modules
        (``weight``)."""
        known = [self.signature[each].name for each in (one, other) if each in self.signature]
        return len(known) == 2 and len({name.rsplit(".", 1)[-1] for name in known}) == 1

    @cached_property
    def _tokens(self) -> dict[str, str]:
        return {each.name: token for token, each in self.signature.items()}

    def name_of(self, token: str, about: Reading) -> str:
        """The module's name of a tensor that PyTorch's graph calls ``token``."""
        listed = self.signature.get(token)
        return listed.name if listed is not None else about.named(token) or token

    def nameless(self, name: str) -> bool:
        """An initializer whose name the exporter made up. Where it says what the parameters are,
        also one that is none of them (``zeros_like_1``, ``tmp``)."""
        made = bool(self.kinds) and name not in self.kinds and "." not in name
        return is_nameless(name) or made


def _results(model: onnx.ModelProto) -> set[str]:
    """Names of values in PyTorch's graph, as far as its exporter tells them."""
    found = {name for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        about = reading_of(node)
        if about is not None:
            found.update(re.findall(r"%(\w+)", about.call))
    return found


def marks_of(model: onnx.ModelProto) -> Marks:
    """Everything the file says.

    Raises:
        ModelError: the list in its metadata is damaged.
    """
    stored = {tensor.name for tensor in model.graph.initializer}
    entries: dict[str, dict[str, str]] = {}
    for item in (*model.graph.value_info, *model.graph.initializer, *model.graph.input):
        found = {entry.key: entry.value for entry in item.metadata_props}
        if found and item.name in stored:
            entries.setdefault(item.name, {}).update(found)
    folded, copied, computed, stepped, filled = {}, set(), set(), set(), {}
    results = _results(model)
    signature = signature_of(model)
    listed = {each.name: each.kind for each in signature.values()}
    sources = {name: _names(entry[FOLDED]) for name, entry in entries.items() if FOLDED in entry}
    for name, behind in sources.items():
        all_of_it = (name, *behind)
        if any(stem(each) in _COPYING for each in all_of_it):
            copied.add(name)
        if _is_computed(all_of_it, listed):
            computed.add(name)
        if _is_stepped(all_of_it, listed):
            stepped.add(name)
        if fills := {stem(each) for each in all_of_it} & _FILLS:
            filled[name] = fills <= _TRIANGLES
        made = {n for n in behind if n in results and not _is_result(n)}
        names = (n for n in behind if not is_nameless(n) and n not in made)
        if listed:
            names = (n for n in names if n in listed or "." in n or is_buffer_name(n))
        folded[name] = tuple(names)
    marks = Marks(
        kinds={each.name: each.kind for each in signature.values()}
        | {n: e[_KIND] for n, e in entries.items() if _KIND in e},
        folded=folded,
        copied=frozenset(copied),
        computed=frozenset(computed),
        stepped=frozenset(stepped),
        filled=filled,
        stopped=tuple(name for name, behind in sources.items() if any(map(is_detached, behind))),
        chosen=_chosen(model, sources, signature),
        placeholders={each.name: token for token, each in signature.items() if each.name in stored}
        | {n: e[PLACEHOLDER] for n, e in entries.items() if PLACEHOLDER in e},
        signature=signature,
        inputs=ends_of(model, "inputs"),
        results=ends_of(model, "outputs"),
        norms=folded_norms(model),
        named=model.producer_name == "pytorch" and not signature,
    )
    return _with_list(marks, model)


def _with_list(marks: Marks, model: onnx.ModelProto) -> Marks:
    """The marks, and the list that :func:`onnxremat.export` writes."""
    listed = parameters_of(model)
    if listed is None:
        return marks
    return replace(
        marks,
        trained=frozenset(listed.trained),
        frozen=frozenset(listed.frozen),
        halted=frozenset(listed.stopped),
        buffers=frozenset(listed.buffers),
        resting=frozenset(listed.resting),
    )


def _chosen(
    model: onnx.ModelProto,
    sources: Mapping[str, tuple[str, ...]],
    signature: Mapping[str, Listed],
) -> tuple[str, ...]:
    """Parameters that comparisons, orders and the like were folded from."""
    learned = {each.name for each in signature.values() if each.kind == PARAMETER}
    found: dict[str, None] = {}
    for tensor in model.graph.initializer:
        behind = sources.get(tensor.name, ())
        ordered = tensor.data_type in _WHOLE and any(
            stem(each) in _ORDERS for each in (tensor.name, *behind)
        )
        if tensor.data_type == onnx.TensorProto.BOOL or ordered:
            found.update((each, None) for each in behind if each in learned)
    return tuple(found)


def _names(text: str) -> tuple[str, ...]:
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return ()
    return tuple(map(str, found)) if isinstance(found, (list, tuple)) else ()


def is_nameless(name: str) -> bool:
    """The name is one that an exporter made up."""
    return _NAMELESS.match(name) is not None


def is_buffer_name(name: str) -> bool:
    """Libraries give such names to buffers."""
    last = name.rsplit(".", 1)[-1]
    return last in BUFFERS or re.match(r"_?(lifted_tensor|tensor_constant)_?\d+$", last) is not None


def of_rewritten(name: str, names: Collection[str]) -> str:
    """What makes a tensor of a module's original one, of which this is a buffer: ``spectral norm``
    or ``pruning``, "" where it is none, by the names that PyTorch gives them."""
    if re.search(r"(^|\.)parametrizations\.\w+\.\d+\._[uv]$", name):
        return SPECTRAL
    whole, _, last = name.rpartition("_")
    if last not in ("u", "v", "mask") or f"{whole}_orig" not in names:
        return ""
    return "pruning" if last == "mask" else SPECTRAL


def parameters_among(sources: Iterable[str], kinds: Mapping[str, str]) -> tuple[str, ...]:
    """Of the names a constant was folded from, those that may be parameters: what the file calls
    so. Where it calls none of them anything, not buffers by their name, and not results of
    PyTorch's operators (``cos_1``, ``unsqueeze_2``)."""
    sources = tuple(sources)
    for kind in (PARAMETER, BUFFER):
        if known := tuple(name for name in sources if kinds.get(name) == kind):
            return known
    return tuple(n for n in sources if not is_buffer_name(n) and ("." in n or not _is_result(n)))


def _is_computed(sources: Iterable[str], listed: Mapping[str, str]) -> bool:
    """Numbers were changed on the way, not only moved: by an operator that is known to, or, where
    the file lists what is no operator, is not known not to."""
    names = [n for n in sources if "." not in n and n not in listed and not is_nameless(n)]
    if not names and {PARAMETER, BUFFER} <= {listed.get(n) for n in sources}:
        return True  # inside an operator that takes both, as the product of a linear layer
    if listed and names and stem(names[0]) == "embedding":
        return False  # rows of the table; what was computed are their numbers
    parts = any(stem(n) == "getitem" for n in names)  # of several results
    if listed and parts and not any(stem(n).startswith(_CUTTING) for n in names):
        return True  # of an operator that left no name, as batch_norm of a convolution's weight
    return any(stem(n) in _COMPUTING or (listed and stem(n) not in _MOVING) for n in names)


def _is_stepped(sources: Iterable[str], listed: Collection[str]) -> bool:
    """Numbers were rounded or compared, and else moved."""
    stems = {stem(n) for n in sources if n not in listed and not is_nameless(n)}
    return not stems.isdisjoint(_STEPS) and stems <= _ALONE


def is_detached(name: str) -> bool:
    """A name in PyTorch's graph of a result at which gradients stop."""
    return stem(name) in ("detach", "detach_")


def _is_result(name: str) -> bool:
    return stem(name) in _RESULTS


def stem(name: str) -> str:
    """A name in PyTorch's graph without its number: that of the operator, mostly."""
    return re.sub(r"(_\d+)+$", "", name)


def folded_norms(model: onnx.ModelProto) -> tuple[str, ...]:
    """Convolutions that a batch normalization was folded into: by what PyTorch's exporter says
    about the node, or because its older one gave weight and bias other names (where it only
    computed the weight, a mask times a parameter, the bias keeps its own). Named by the weight."""
    found = []
    for node in model.graph.node:
        if node.op_type not in ("Conv", "ConvTranspose", "Gemm") or len(node.input) < 2:
            continue
        weight = node.input[1]
        if is_folded_norm(node):
            found.append(weight)
        elif len(node.input) > 2 and all(map(_IN_CONV.match, node.input[1:3])):
            found.append(module_of(node) or weight)
    return tuple(found)


def is_folded_norm(node: onnx.NodeProto) -> bool:
    """Whether onnxscript's rewriter made the node of a convolution and a batch normalization."""
    return "BatchNorm" in rules_of(node)


def rules_of(node: onnx.NodeProto) -> str:
    """Names of the rules by which onnxscript's rewriter made a node, "" where none did."""
    return next((e.value for e in node.metadata_props if e.key == _RULES), "")


@dataclass(frozen=True)
class Reading:
    """A node as PyTorch's exporter describes it.

    Attributes:
        call: PyTorch's node, one for all ONNX nodes made of it.
        scope: module, as ``layers.0.norm``.
    """

    call: str
    scope: str

    @property
    def made(self) -> str:
        """PyTorch's name of its result."""
        return self.call.split(" ", 1)[0].lstrip("%")

    @property
    def taken(self) -> tuple[str, ...]:
        """PyTorch's names of everything it reads, in order."""
        return tuple(re.findall(r"%(\w+)", self.call.split("args = ", 1)[-1]))

    @property
    def arguments(self) -> tuple[str, ...]:
        """What it is called with, in order: PyTorch's names, and anything else as it is written."""
        inside = self.call.partition("args = (")[2].partition("), kwargs")[0]
        return tuple(part.strip().lstrip("%") for part in inside.split(","))

    @property
    def tensors(self) -> tuple[str, ...]:
        """Parameters and buffers it reads, by PyTorch's names (``p_layers_0_norm_weight``)."""
        return tuple(name for name in self.taken if name.startswith(tuple(KIND_OF)))

    @property
    def padding(self) -> int | None:
        """Row of an embedding's table that PyTorch does not train (its ``padding_idx``)."""
        found = re.search(r"aten\.embedding\.default\]\(args = \(%\w+, %\w+, (\d+)", self.call)
        return int(found[1]) if found else None

    @property
    def by_frequency(self) -> bool:
        """Gradients of an embedding's rows are divided by how often a batch reads them."""
        said = re.search(r"aten\.embedding\.default\]\(args = \([^)]*, -?\d+, True", self.call)
        return said is not None

    def takes(self, name: str) -> bool:
        """PyTorch's node read a result of this name."""
        return name in self.taken

    def named(self, tensor: str) -> str:
        """Name of a tensor it reads, as the module has it but for capitals in its last part, which
        PyTorch's graph has not; "" where that is not known."""
        flat = re.sub(r"\W", "_", self.scope).lower()
        for prefix in KIND_OF:
            start = prefix + (f"{flat}_" if flat else "")
            if tensor.lower().startswith(start):
                return f"{self.scope}.{tensor[len(start) :]}" if self.scope else tensor[2:]
        return ""


def module_of(node: onnx.NodeProto) -> str:
    """The module a node belongs to, as both of PyTorch's exporters say; "" where they do not."""
    about = reading_of(node)
    if about is not None:
        return about.scope
    return joined(node.name.split("/")[1:-1]) if node.name.startswith("/") else ""


def joined(scopes: Iterable[str]) -> str:
    """The name of a module, of the scopes in names of nodes of PyTorch's older exporter."""
    path: list[str] = []
    for part in scopes:
        if path and part.startswith(f"{path[-1]}."):  # /layers/layers.0/norm
            path.pop()
        path.append(part)
    return ".".join(path)


def reading_of(node: onnx.NodeProto) -> Reading | None:
    """What PyTorch's exporter says about a node, None where it says nothing."""
    entry = {item.key: item.value for item in node.metadata_props}
    scopes = _names(entry.get(SCOPES, ""))
    if READS not in entry or not scopes:
        return None
    scope = scopes[-2] if len(scopes) > 1 else ""
    return Reading(entry[READS], scope)
