"""dualkv: the C library from Python, NumPy arrays in and out.

    import dualkv as dk
    layout = dk.group(3, [2, 2])                       # the seven-token group
    out = dk.attention(q, k, v, layout, do=do)          # out["o"], out["lse"], out["dq"], out["dk"], out["dv"]

A thin layer over ctypes: the arithmetic is the library's; every failing call raises DualKVError with the library's own sentence.
Letters: T rows, S segments, H query heads, Hkv key heads, D head size.  The library is looked for in $DUALKV_LIBRARY, then in
build/ beside this folder; `make lib` builds it.
"""
import ctypes as C
import os

import numpy as np

_HERE = os.path.dirname(os.path.abspath(__file__))
_PATH = os.environ.get("DUALKV_LIBRARY", os.path.join(_HERE, "..", "build", "libdualkv.so"))
try:
    _lib = C.CDLL(_PATH)
except OSError as error:
    raise ImportError("the library is not at %s; run `make lib` in the project's root or set DUALKV_LIBRARY (%s)" % (_PATH, error))
_libc = C.CDLL(None)
_libc.free.argtypes = [C.c_void_p]

F32, BF16, F16, F64 = 0, 1, 2, 3
_I32P = C.POINTER(C.c_int32)


class DualKVError(Exception):
    """What the library refused, in its own sentence; .status is the code's name."""

    def __init__(self, status):
        self.status = _status_name(status).decode()
        super().__init__(_last_error().decode())


class _Layout(C.Structure):
    _fields_ = [("segments", C.c_int32), ("rows", C.c_int32), ("depth", C.c_int32), ("parent", _I32P), ("start", _I32P),
                ("subtree_end", _I32P), ("base", _I32P), ("segment", _I32P), ("end", _I32P), ("position", _I32P)]


class _Range(C.Structure):
    _fields_ = [("begin", C.c_int32), ("end", C.c_int32)]


class _Prediction(C.Structure):
    _fields_ = [("source", C.c_int32), ("target", C.c_int32), ("segment", C.c_int32)]


class _TileCount(C.Structure):
    _fields_ = [(n, C.c_int64) for n in ("full", "partial", "empty_skipped", "issued_pairs", "useful_pairs")]


class _Results(C.Structure):
    _fields_ = [("dtype", C.c_int), ("lse_dtype", C.c_int), ("data", C.c_void_p * 5)]


class _Problem(C.Structure):
    _fields_ = [("layout", _Layout), ("heads", C.c_int32), ("kv_heads", C.c_int32), ("head_dim", C.c_int32), ("scale", C.c_double),
                ("dtype", C.c_int), ("q", C.c_void_p), ("k", C.c_void_p), ("v", C.c_void_p), ("dout", C.c_void_p),
                ("answer", _Results)]


class _Options(C.Structure):
    _fields_ = [("forward", C.c_char_p), ("backward", C.c_char_p), ("deterministic", C.c_bool), ("threads", C.c_int32)]


class _ModelShape(C.Structure):
    _fields_ = [(n, C.c_int32) for n in ("layers", "width", "mlp_width", "vocabulary", "heads", "kv_heads", "head_dim", "element_bytes")]


class _Cost(C.Structure):
    _fields_ = [(n, C.c_int64) for n in ("rows", "pairs", "predictions")] + \
               [(n, C.c_double) for n in ("linear_flops", "pair_flops", "head_flops", "attention_bytes", "activation_bytes")]


class _Saving(C.Structure):
    _fields_ = [("packed", _Cost), ("replicated", _Cost), ("rho", C.c_double), ("pair_ratio", C.c_double), ("step_ratio", C.c_double)]


class _AdvantageConfig(C.Structure):
    _fields_ = [("divide_by_std", C.c_bool), ("population", C.c_bool), ("epsilon", C.c_double)]


def _declare(name, result, *arguments):
    function = getattr(_lib, name)
    function.restype, function.argtypes = result, list(arguments)
    return function


_P = C.POINTER
_last_error = _declare("dkv_last_error", C.c_char_p)
_status_name = _declare("dkv_status_name", C.c_char_p, C.c_int)
_layout_forest = _declare("dkv_layout_forest", C.c_int, _P(_Layout), C.c_int32, _I32P, _I32P)
_layout_replicate = _declare("dkv_layout_replicate", C.c_int, _P(_Layout), _P(_I32P), _P(_Layout))
_layout_free = _declare("dkv_layout_free", None, _P(_Layout))
_layout_pairs = _declare("dkv_layout_pairs", C.c_int64, _P(_Layout))
_layout_draw = _declare("dkv_layout_draw", C.c_int, _P(C.c_void_p), _P(_Layout), C.c_int32)
_classify = _declare("dkv_tile_classify", C.c_int, _P(_Layout), *[C.c_int32] * 4)
_key_ranges = _declare("dkv_key_ranges", C.c_int32, _P(_Layout), C.c_int32, C.c_int32, _P(_Range), C.c_int32)
_query_range = _declare("dkv_query_range", _Range, _P(_Layout), C.c_int32, C.c_int32)
_tile_counts = _declare("dkv_tile_counts", C.c_int, _P(_TileCount), _P(_Layout), C.c_int32, C.c_int32)
_predictions = _declare("dkv_predictions", C.c_int, _P(_P(_Prediction)), _I32P, _P(_Layout))
_fold_rows = _declare("dkv_fold_rows", C.c_int, C.c_void_p, C.c_int32, C.c_void_p, C.c_int64, C.c_int, _I32P, C.c_int32)
_backend_find = _declare("dkv_backend_find", C.c_int, _P(C.c_void_p), C.c_char_p)
_execute = _declare("dkv_execute", C.c_int, _P(_Results), C.c_void_p, _P(_Problem), _P(_Options))
_results_free = _declare("dkv_results_free", None, _P(_Results))
_convert = _declare("dkv_convert", C.c_int, C.c_void_p, C.c_int, C.c_void_p, C.c_int, C.c_int64)
_rho = _declare("dkv_cost_rho", C.c_double, *[C.c_double] * 3)
_pair_ratio = _declare("dkv_cost_pair_ratio", C.c_double, *[C.c_double] * 3)
_saving = _declare("dkv_cost_saving", C.c_int, _P(_Saving), _P(_Layout), _P(_ModelShape))
_advantages = _declare("dkv_advantages", C.c_int, C.c_void_p, C.c_void_p, C.c_int32, _P(_AdvantageConfig))


def _check(status):
    if status != 0:
        raise DualKVError(status)


def _i32(values):
    array = np.ascontiguousarray(values, np.int32).ravel()
    return array, array.ctypes.data_as(_I32P)


class Layout:
    """A forest of segments over T packed rows; see common/layout.h.

    Arrays (copies, int32): parent, length, start, subtree_end [S]; segment, end, position [T].
    """

    def __init__(self, parent, length):
        """Any forest in depth-first order: parent [S] (or -1) and length [S] (>= 0)."""
        p, p_pointer = _i32(parent)
        n, n_pointer = _i32(length)
        if len(p) != len(n):
            raise ValueError("parent has %d segments, length has %d" % (len(p), len(n)))
        self._c = _Layout()
        _check(_layout_forest(C.byref(self._c), len(p), p_pointer, n_pointer))
        self._read()

    @classmethod
    def _adopt(cls, c):
        self = cls.__new__(cls)
        self._c = c
        self._read()
        return self

    def _read(self):
        c = self._c
        take = lambda pointer, n: np.ctypeslib.as_array(pointer, (n,)).copy() if n else np.zeros(0, np.int32)
        self.segments, self.rows, self.depth = c.segments, c.rows, c.depth
        self.parent, self.subtree_end = take(c.parent, c.segments), take(c.subtree_end, c.segments)
        self.start = take(c.start, c.segments + 1)
        self.length = np.diff(self.start)
        self.segment, self.end, self.position = take(c.segment, c.rows), take(c.end, c.rows), take(c.position, c.rows)

    def __del__(self):
        if hasattr(self, "_c") and _layout_free is not None:
            _layout_free(C.byref(self._c))

    def __repr__(self):
        return "Layout(T=%d, S=%d, depth=%d)" % (self.rows, self.segments, self.depth)

    @property
    def pairs(self):
        """Visible (query, key) pairs, counted exactly."""
        return _layout_pairs(C.byref(self._c))

    def mask(self):
        """[T, T] bool: row i sees row j exactly when j <= i and i < end[j]."""
        i = np.arange(self.rows)[:, None]
        j = np.arange(self.rows)[None, :]
        return (j <= i) & (i < self.end[None, :])

    def replicate(self):
        """The layout with one root for every path to a leaf, and row_map: the packed row behind each of its rows."""
        c, row_map = _Layout(), _I32P()
        _check(_layout_replicate(C.byref(c), C.byref(row_map), C.byref(self._c)))
        rows = np.ctypeslib.as_array(row_map, (c.rows,)).copy() if c.rows else np.zeros(0, np.int32)
        _libc.free(C.cast(row_map, C.c_void_p))
        return Layout._adopt(c), rows

    def draw(self, tile=0):
        """Segments, positions and mask as text."""
        text = C.c_void_p()
        _check(_layout_draw(C.byref(text), C.byref(self._c), tile))
        drawing = C.string_at(text).decode()
        _libc.free(text)
        return drawing

    def predictions(self):
        """[n, 3] int32: source row, target row, segment; exactly the length of each response of pairs."""
        pairs, count = _P(_Prediction)(), C.c_int32()
        _check(_predictions(C.byref(pairs), C.byref(count), C.byref(self._c)))
        out = np.array([(pairs[i].source, pairs[i].target, pairs[i].segment) for i in range(count.value)], np.int32).reshape(-1, 3)
        _libc.free(C.cast(pairs, C.c_void_p))
        return out

    def tile_class(self, i0, i1, j0, j1):
        """"empty", "full" or "partial": query rows [i0, i1) against key rows [j0, j1)."""
        if not (0 <= i0 < i1 <= self.rows and 0 <= j0 < j1 <= self.rows):
            raise ValueError("tiles must lie inside 0 .. %d and hold a row" % self.rows)
        return ("empty", "full", "partial")[_classify(C.byref(self._c), i0, i1, j0, j1)]

    def key_ranges(self, i0, i1):
        """Contiguous key ranges [(begin, end)] that query rows [i0, i1) need."""
        if not 0 <= i0 < i1 <= self.rows:
            raise ValueError("query rows [%d, %d) do not lie inside 0 .. %d" % (i0, i1, self.rows))
        ranges = (_Range * (self.depth + 1))()
        count = _key_ranges(C.byref(self._c), i0, i1, ranges, self.depth + 1)
        return [(r.begin, r.end) for r in ranges[:count]]

    def query_range(self, j0, j1):
        """The one contiguous range of query rows that see a key of [j0, j1)."""
        if not 0 <= j0 < j1 <= self.rows:
            raise ValueError("key rows [%d, %d) do not lie inside 0 .. %d" % (j0, j1, self.rows))
        r = _query_range(C.byref(self._c), j0, j1)
        return r.begin, r.end

    def tile_counts(self, rows, keys):
        """Tile pairs that a kernel with tiles of rows x keys visits: dict of full, partial, empty_skipped, issued_pairs, useful_pairs."""
        count = _TileCount()
        _check(_tile_counts(C.byref(count), C.byref(self._c), rows, keys))
        return {name: getattr(count, name) for name, _ in _TileCount._fields_}


def group(prompt, lengths):
    """One prompt of `prompt` rows and responses of the given lengths."""
    return Layout([-1] + [0] * len(lengths), [prompt] + list(lengths))


def groups(*each):
    """Several groups, each a pair (prompt, lengths)."""
    parent, length = [], []
    for prompt, lengths in each:
        root = len(parent)
        parent += [-1] + [root] * len(lengths)
        length += [prompt] + list(lengths)
    return Layout(parent, length)


def backend_present(name):
    """(True, "") when the backend can be used, (False, sentence) when not."""
    found = C.c_void_p()
    status = _backend_find(C.byref(found), name.encode())
    return (True, "") if status == 0 else (False, _last_error().decode())


def round_to(x, dtype):
    """x (float64) rounded to "f32", "bf16" or "f16" and back, by the library's own conversion."""
    code, size = {"f32": (F32, 4), "bf16": (BF16, 2), "f16": (F16, 2)}[dtype]
    x = np.ascontiguousarray(x, np.float64)
    bits, back = np.empty(x.size * size, np.uint8), np.empty_like(x)
    _check(_convert(bits.ctypes.data, code, x.ctypes.data, F64, x.size))
    _check(_convert(back.ctypes.data, F64, bits.ctypes.data, code, x.size))
    return back


def attention(q, k, v, layout, scale=None, do=None, backend="cpu", kernel=None, backward_kernel=None, dtype="f32", threads=0):
    """Packed attention, forward, and backward when `do` is given.

    q, do [T, H, D]; k, v [T, Hkv, D]; scale defaults to 1/sqrt(D).  Inputs are rounded to `dtype` ("f32", "bf16", "f16", and "f64"
    for backend "ref").  Returns a dict: o [T, H, D], lse [H, T], and dq [T, H, D], dk, dv [T, Hkv, D], as float64.
    """
    code, size = {"f32": (F32, 4), "bf16": (BF16, 2), "f16": (F16, 2), "f64": (F64, 8)}[dtype]
    arrays = {name: np.ascontiguousarray(a, np.float64) for name, a in dict(q=q, k=k, v=v, dout=do).items() if a is not None}
    if any(a.ndim != 3 or a.shape[0] != layout.rows for a in arrays.values()):
        raise ValueError("q, k, v and do must be [T, heads, D] with T = %d rows of the layout" % layout.rows)
    heads, kv_heads, dim = arrays["q"].shape[1], arrays["k"].shape[1], arrays["q"].shape[2]
    if any(a.shape[2] != dim for a in arrays.values()) or arrays["v"].shape[1] != kv_heads:
        raise ValueError("k and v must have equal heads, and all tensors the same D")
    if "dout" in arrays and arrays["dout"].shape != arrays["q"].shape:
        raise ValueError("do must be shaped like q, %s" % (arrays["q"].shape,))
    problem = _Problem(layout=layout._c, heads=heads, kv_heads=kv_heads, head_dim=dim, dtype=code,
                       scale=dim ** -0.5 if scale is None else scale)
    stored = {}
    for name, a in arrays.items():
        stored[name] = np.empty(a.size * size, np.uint8)
        _check(_convert(stored[name].ctypes.data, code, a.ctypes.data, F64, a.size))
        setattr(problem, name, stored[name].ctypes.data)
    found, results = C.c_void_p(), _Results()
    _check(_backend_find(C.byref(found), backend.encode()))
    encode = lambda text: None if text is None else text.encode()
    options = _Options(encode(kernel), encode(backward_kernel), False, threads)
    _check(_execute(C.byref(results), found, C.byref(problem), C.byref(options)))
    shapes = [("o", (layout.rows, heads, dim)), ("lse", (heads, layout.rows)), ("dq", (layout.rows, heads, dim)),
              ("dk", (layout.rows, kv_heads, dim)), ("dv", (layout.rows, kv_heads, dim))]
    out = {}
    for i, (name, shape) in enumerate(shapes):
        if results.data[i]:
            out[name] = np.empty(shape)
            _check(_convert(out[name].ctypes.data, F64, results.data[i], results.lse_dtype if name == "lse" else results.dtype, out[name].size))
    _results_free(C.byref(results))
    return out


def fold(gradient, row_map, rows):
    """Adds up the gradients of copies: [T_replicated, ...] to [rows, ...] (float64)."""
    g = np.ascontiguousarray(gradient, np.float64)
    m, m_pointer = _i32(row_map)
    out = np.empty((rows,) + g.shape[1:])
    _check(_fold_rows(out.ctypes.data, rows, g.ctypes.data, int(np.prod(g.shape[1:], dtype=np.int64)), F64, m_pointer, len(m)))
    return out


def rho(prompt, responses, response_length):
    """Token ratio N(P+R) / (P+NR)."""
    return _rho(prompt, responses, response_length)


def pair_ratio(prompt, responses, response_length):
    """Attention pair ratio A = N(P+R)^2 / (P^2 + NR(2P+R))."""
    return _pair_ratio(prompt, responses, response_length)


def saving(layout, layers=36, width=4096, mlp_width=12288, vocabulary=151936, heads=32, kv_heads=8, head_dim=128, element_bytes=2):
    """Counted cost of packed and replicated for a Qwen3-style model (default: Qwen3-8B): dict with rho, pair_ratio, step_ratio and both costs."""
    shape, out = _ModelShape(layers, width, mlp_width, vocabulary, heads, kv_heads, head_dim, element_bytes), _Saving()
    _check(_saving(C.byref(out), C.byref(layout._c), C.byref(shape)))
    cost = lambda c: {name: getattr(c, name) for name, _ in _Cost._fields_}
    return dict(packed=cost(out.packed), replicated=cost(out.replicated), rho=out.rho, pair_ratio=out.pair_ratio, step_ratio=out.step_ratio)


def advantages(rewards, divide_by_std=True, population=False, epsilon=1e-6):
    """Group-relative advantages of one group's rewards."""
    r = np.ascontiguousarray(rewards, np.float64)
    out, config = np.empty_like(r), _AdvantageConfig(divide_by_std, population, epsilon)
    _check(_advantages(out.ctypes.data, r.ctypes.data, r.size, C.byref(config)))
    return out
