"""dualkv_abi: the library's structs and functions as ctypes sees them; dualkv.py is what to import.

Each struct repeats one of common/*.h or cpu/attention/counted.h, field by field, under its name without dkv_.
test_dualkv.py holds them to numbers that a wrong field would change.
"""

import ctypes as C
import os

_HERE = os.path.dirname(os.path.abspath(__file__))
_PATH = os.environ.get("DUALKV_LIBRARY", os.path.join(_HERE, "..", "build", "libdualkv.so"))
try:
    lib = C.CDLL(_PATH)
except OSError as error:
    raise ImportError(
        "the library is not at %s; run `make lib` in the project's root or set DUALKV_LIBRARY (%s)" % (_PATH, error)
    )
libc = C.CDLL(None)
libc.free.argtypes = [C.c_void_p]

F32, BF16, F16, F64 = 0, 1, 2, 3
I32P = C.POINTER(C.c_int32)


class Layout(C.Structure):
    _fields_ = [
        ("segments", C.c_int32),
        ("rows", C.c_int32),
        ("depth", C.c_int32),
        ("parent", I32P),
        ("start", I32P),
        ("subtree_end", I32P),
        ("base", I32P),
        ("segment", I32P),
        ("end", I32P),
        ("position", I32P),
    ]


class Range(C.Structure):
    _fields_ = [("begin", C.c_int32), ("end", C.c_int32)]


class Prediction(C.Structure):
    _fields_ = [("source", C.c_int32), ("target", C.c_int32), ("segment", C.c_int32)]


class TileCount(C.Structure):
    _fields_ = [(n, C.c_int64) for n in ("full", "partial", "empty_skipped", "issued_pairs", "useful_pairs")]


class Results(C.Structure):
    _fields_ = [("dtype", C.c_int), ("lse_dtype", C.c_int), ("data", C.c_void_p * 5)]


class Problem(C.Structure):
    _fields_ = [
        ("layout", Layout),
        ("heads", C.c_int32),
        ("kv_heads", C.c_int32),
        ("head_dim", C.c_int32),
        ("scale", C.c_double),
        ("dtype", C.c_int),
        ("q", C.c_void_p),
        ("k", C.c_void_p),
        ("v", C.c_void_p),
        ("dout", C.c_void_p),
        ("answer", Results),
    ]


class Options(C.Structure):
    _fields_ = [("forward", C.c_char_p), ("backward", C.c_char_p), ("deterministic", C.c_bool), ("threads", C.c_int32)]


class ModelShape(C.Structure):
    _fields_ = [
        (n, C.c_int32)
        for n in ("layers", "width", "mlp_width", "vocabulary", "heads", "kv_heads", "head_dim", "element_bytes")
    ]


class Cost(C.Structure):
    _fields_ = [(n, C.c_int64) for n in ("rows", "pairs", "predictions")] + [
        (n, C.c_double) for n in ("linear_flops", "pair_flops", "head_flops", "attention_bytes", "activation_bytes")
    ]


class Saving(C.Structure):
    _fields_ = [
        ("packed", Cost),
        ("replicated", Cost),
        ("rho", C.c_double),
        ("pair_ratio", C.c_double),
        ("step_ratio", C.c_double),
    ]


class AdvantageConfig(C.Structure):
    _fields_ = [("divide_by_std", C.c_bool), ("population", C.c_bool), ("epsilon", C.c_double)]


class Attention(C.Structure):
    _fields_ = (
        [
            ("layout", C.POINTER(Layout)),
            ("heads", C.c_int32),
            ("kv_heads", C.c_int32),
            ("head_dim", C.c_int32),
            ("scale", C.c_double),
            ("dtype", C.c_int),
            ("deterministic", C.c_bool),
            ("threads", C.c_int32),
        ]
        + [(n, C.c_void_p) for n in ("stream", "q", "k", "v", "o", "lse", "dout", "dq", "dk", "dv", "workspace")]
        + [("workspace_bytes", C.c_size_t)]
    )


class Counted(C.Structure):
    _fields_ = [
        (n, C.c_int64)
        for n in ("query_tiles", "key_loads", "full_panels", "masked_panels", "useful_pairs", "issued_pairs")
    ] + [(n, C.c_double) for n in ("useful_flops", "issued_flops", "query_bytes", "key_bytes", "sum_bytes")]


class PolicyConfig(C.Structure):
    _fields_ = [("surrogate", C.c_int), ("aggregation", C.c_int)] + [
        (n, C.c_double) for n in ("clip_low", "clip_high", "dual_clip", "kl_weight", "entropy_weight", "max_length")
    ]


class Normaliser(C.Structure):
    _fields_ = [("tokens", C.c_int64), ("responses", C.c_int64)]


class PolicyBatch(C.Structure):
    _fields_ = [("responses", C.c_int32)] + [
        (n, C.c_void_p) for n in ("begin", "advantage", "active", "logprob", "old", "reference", "entropy")
    ]


class PolicyStats(C.Structure):
    _fields_ = [(n, C.c_double) for n in ("loss", "policy", "kl", "entropy", "ratio", "max_log_ratio")] + [
        (n, C.c_int64) for n in ("clipped_low", "clipped_high", "clipped_dual", "tokens")
    ]


class Layers(C.Structure):
    """The head of the table dkv_layers (common/layers.h), up to what is called from here."""

    _fields_ = [("name", C.c_char_p)] + [
        (n, C.c_void_p) for n in ("embedding_fwd", "embedding_bwd", "rmsnorm_fwd", "rmsnorm_bwd", "rope", "rope_table")
    ]


class Where(C.Structure):
    _fields_ = [("threads", C.c_int32), ("row_tile", C.c_int32), ("stream", C.c_void_p), ("scratch", C.c_void_p)]


def declare(name, result, *arguments):
    function = getattr(lib, name)
    function.restype, function.argtypes = result, list(arguments)
    return function


P = C.POINTER
last_error = declare("dkv_last_error", C.c_char_p)
status_name = declare("dkv_status_name", C.c_char_p, C.c_int)
layout_forest = declare("dkv_layout_forest", C.c_int, P(Layout), C.c_int32, I32P, I32P)
layout_replicate = declare("dkv_layout_replicate", C.c_int, P(Layout), P(I32P), P(Layout))
layout_free = declare("dkv_layout_free", None, P(Layout))
layout_pairs = declare("dkv_layout_pairs", C.c_int64, P(Layout))
layout_draw = declare("dkv_layout_draw", C.c_int, P(C.c_void_p), P(Layout), C.c_int32)
classify = declare("dkv_tile_classify", C.c_int, P(Layout), *[C.c_int32] * 4)
key_ranges = declare("dkv_key_ranges", C.c_int32, P(Layout), C.c_int32, C.c_int32, P(Range), C.c_int32)
query_range = declare("dkv_query_range", Range, P(Layout), C.c_int32, C.c_int32)
tile_counts = declare("dkv_tile_counts", C.c_int, P(TileCount), P(Layout), C.c_int32, C.c_int32)
predictions = declare("dkv_predictions", C.c_int, P(P(Prediction)), I32P, P(Layout))
fold_rows = declare("dkv_fold_rows", C.c_int, C.c_void_p, C.c_int32, C.c_void_p, C.c_int64, C.c_int, I32P, C.c_int32)
backend_find = declare("dkv_backend_find", C.c_int, P(C.c_void_p), C.c_char_p)
execute = declare("dkv_execute", C.c_int, P(Results), C.c_void_p, P(Problem), P(Options))
results_free = declare("dkv_results_free", None, P(Results))
convert = declare("dkv_convert", C.c_int, C.c_void_p, C.c_int, C.c_void_p, C.c_int, C.c_int64)
rho = declare("dkv_cost_rho", C.c_double, *[C.c_double] * 3)
pair_ratio = declare("dkv_cost_pair_ratio", C.c_double, *[C.c_double] * 3)
saving = declare("dkv_cost_saving", C.c_int, P(Saving), P(Layout), P(ModelShape))
advantages = declare("dkv_advantages", C.c_int, C.c_void_p, C.c_void_p, C.c_int32, P(AdvantageConfig))
count_tiled = declare("dkv_count_tiled", C.c_int, P(Counted), C.c_void_p, P(Attention), C.c_int)
policy_preset = declare("dkv_policy_preset", C.c_int, P(PolicyConfig), C.c_char_p)
policy_loss = declare(
    "dkv_policy_loss", C.c_int, P(PolicyStats), C.c_void_p, C.c_void_p, P(PolicyBatch), P(PolicyConfig), P(Normaliser)
)
layers_find = declare("dkv_layers_find", C.c_int, P(P(Layers)), C.c_char_p)
