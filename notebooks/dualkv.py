"""dualkv: the C library from Python, NumPy arrays in and out.

    import dualkv as dk
    layout = dk.group(3, [2, 2])                       # the seven-token group
    out = dk.attention(q, k, v, layout, do=do)          # out["o"], out["lse"], out["dq"], out["dk"], out["dv"]

A thin layer over ctypes: the arithmetic is the library's; every failing call raises DualKVError with the library's own
sentence.  Letters: T rows, S segments, H query heads, Hkv key heads, D head size.  The library is looked for in
$DUALKV_LIBRARY, then in build/ beside this folder; `make lib` builds it.
"""

import ctypes as C

import numpy as np

import dualkv_abi as abi


class DualKVError(Exception):
    """What the library refused, in its own sentence; .status is the code's name."""

    def __init__(self, status):
        self.status = abi.status_name(status).decode()
        super().__init__(abi.last_error().decode())


def _check(status):
    if status != 0:
        raise DualKVError(status)


def _i32(values):
    array = np.ascontiguousarray(values, np.int32).ravel()
    return array, array.ctypes.data_as(abi.I32P)


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
        self._c = abi.Layout()
        _check(abi.layout_forest(C.byref(self._c), len(p), p_pointer, n_pointer))
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
        if hasattr(self, "_c") and abi is not None:
            abi.layout_free(C.byref(self._c))

    def __repr__(self):
        return "Layout(T=%d, S=%d, depth=%d)" % (self.rows, self.segments, self.depth)

    @property
    def pairs(self):
        """Visible (query, key) pairs, counted exactly."""
        return abi.layout_pairs(C.byref(self._c))

    def mask(self):
        """[T, T] bool: row i sees row j exactly when j <= i and i < end[j]."""
        i = np.arange(self.rows)[:, None]
        j = np.arange(self.rows)[None, :]
        return (j <= i) & (i < self.end[None, :])

    def replicate(self):
        """The layout with one root for every path to a leaf, and row_map: the packed row behind each of its rows."""
        c, row_map = abi.Layout(), abi.I32P()
        _check(abi.layout_replicate(C.byref(c), C.byref(row_map), C.byref(self._c)))
        rows = np.ctypeslib.as_array(row_map, (c.rows,)).copy() if c.rows else np.zeros(0, np.int32)
        abi.libc.free(C.cast(row_map, C.c_void_p))
        return Layout._adopt(c), rows

    def draw(self, tile=0):
        """Segments, positions and mask as text."""
        text = C.c_void_p()
        _check(abi.layout_draw(C.byref(text), C.byref(self._c), tile))
        drawing = C.string_at(text).decode()
        abi.libc.free(text)
        return drawing

    def predictions(self):
        """[n, 3] int32: source row, target row, segment; exactly the length of each response of pairs."""
        pairs, count = abi.P(abi.Prediction)(), C.c_int32()
        _check(abi.predictions(C.byref(pairs), C.byref(count), C.byref(self._c)))
        out = np.array(
            [(pairs[i].source, pairs[i].target, pairs[i].segment) for i in range(count.value)], np.int32
        ).reshape(-1, 3)
        abi.libc.free(C.cast(pairs, C.c_void_p))
        return out

    def tile_class(self, i0, i1, j0, j1):
        """ "empty", "full" or "partial": query rows [i0, i1) against key rows [j0, j1)."""
        if not (0 <= i0 < i1 <= self.rows and 0 <= j0 < j1 <= self.rows):
            raise ValueError("tiles must lie inside 0 .. %d and hold a row" % self.rows)
        return ("empty", "full", "partial")[abi.classify(C.byref(self._c), i0, i1, j0, j1)]

    def key_ranges(self, i0, i1):
        """Contiguous key ranges [(begin, end)] that query rows [i0, i1) need."""
        if not 0 <= i0 < i1 <= self.rows:
            raise ValueError("query rows [%d, %d) do not lie inside 0 .. %d" % (i0, i1, self.rows))
        ranges = (abi.Range * (self.depth + 1))()
        count = abi.key_ranges(C.byref(self._c), i0, i1, ranges, self.depth + 1)
        return [(r.begin, r.end) for r in ranges[:count]]

    def query_range(self, j0, j1):
        """The one contiguous range of query rows that see a key of [j0, j1)."""
        if not 0 <= j0 < j1 <= self.rows:
            raise ValueError("key rows [%d, %d) do not lie inside 0 .. %d" % (j0, j1, self.rows))
        r = abi.query_range(C.byref(self._c), j0, j1)
        return r.begin, r.end

    def tile_counts(self, rows, keys):
        """Tile pairs that a kernel with tiles of rows x keys visits: dict of full, partial, empty_skipped,
        issued_pairs, useful_pairs."""
        count = abi.TileCount()
        _check(abi.tile_counts(C.byref(count), C.byref(self._c), rows, keys))
        return {name: getattr(count, name) for name, _ in abi.TileCount._fields_}


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
    status = abi.backend_find(C.byref(found), name.encode())
    return (True, "") if status == 0 else (False, abi.last_error().decode())


def round_to(x, dtype):
    """x (float64) rounded to "f32", "bf16" or "f16" and back, by the library's own conversion."""
    code, size = {"f32": (abi.F32, 4), "bf16": (abi.BF16, 2), "f16": (abi.F16, 2)}[dtype]
    x = np.ascontiguousarray(x, np.float64)
    bits, back = np.empty(x.size * size, np.uint8), np.empty_like(x)
    _check(abi.convert(bits.ctypes.data, code, x.ctypes.data, abi.F64, x.size))
    _check(abi.convert(back.ctypes.data, abi.F64, bits.ctypes.data, code, x.size))
    return back


def attention(
    q, k, v, layout, scale=None, do=None, backend="cpu", kernel=None, backward_kernel=None, dtype="f32", threads=0
):
    """Packed attention, forward, and backward when `do` is given.

    q, do [T, H, D]; k, v [T, Hkv, D]; scale defaults to 1/sqrt(D).  Inputs are rounded to `dtype` ("f32", "bf16",
    "f16", and "f64" for backend "ref").  Returns a dict, float64: o [T, H, D], lse [H, T], and dq [T, H, D],
    dk, dv [T, Hkv, D].
    """
    code, size = {"f32": (abi.F32, 4), "bf16": (abi.BF16, 2), "f16": (abi.F16, 2), "f64": (abi.F64, 8)}[dtype]
    arrays = {
        name: np.ascontiguousarray(a, np.float64) for name, a in dict(q=q, k=k, v=v, dout=do).items() if a is not None
    }
    if any(a.ndim != 3 or a.shape[0] != layout.rows for a in arrays.values()):
        raise ValueError("q, k, v and do must be [T, heads, D] with T = %d rows of the layout" % layout.rows)
    heads, kv_heads, dim = arrays["q"].shape[1], arrays["k"].shape[1], arrays["q"].shape[2]
    if any(a.shape[2] != dim for a in arrays.values()) or arrays["v"].shape[1] != kv_heads:
        raise ValueError("k and v must have equal heads, and all tensors the same D")
    if "dout" in arrays and arrays["dout"].shape != arrays["q"].shape:
        raise ValueError("do must be shaped like q, %s" % (arrays["q"].shape,))
    problem = abi.Problem(
        layout=layout._c,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
        dtype=code,
        scale=dim**-0.5 if scale is None else scale,
    )
    stored = {}
    for name, a in arrays.items():
        stored[name] = np.empty(a.size * size, np.uint8)
        _check(abi.convert(stored[name].ctypes.data, code, a.ctypes.data, abi.F64, a.size))
        setattr(problem, name, stored[name].ctypes.data)
    found, results = C.c_void_p(), abi.Results()
    _check(abi.backend_find(C.byref(found), backend.encode()))
    encode = lambda text: None if text is None else text.encode()
    options = abi.Options(encode(kernel), encode(backward_kernel), False, threads)
    _check(abi.execute(C.byref(results), found, C.byref(problem), C.byref(options)))
    shapes = [
        ("o", (layout.rows, heads, dim)),
        ("lse", (heads, layout.rows)),
        ("dq", (layout.rows, heads, dim)),
        ("dk", (layout.rows, kv_heads, dim)),
        ("dv", (layout.rows, kv_heads, dim)),
    ]
    out = {}
    for i, (name, shape) in enumerate(shapes):
        if results.data[i]:
            out[name] = np.empty(shape)
            _check(
                abi.convert(
                    out[name].ctypes.data,
                    abi.F64,
                    results.data[i],
                    results.lse_dtype if name == "lse" else results.dtype,
                    out[name].size,
                )
            )
    abi.results_free(C.byref(results))
    return out


def fold(gradient, row_map, rows):
    """Adds up the gradients of copies: [T_replicated, ...] to [rows, ...] (float64)."""
    g = np.ascontiguousarray(gradient, np.float64)
    m, m_pointer = _i32(row_map)
    out = np.empty((rows,) + g.shape[1:])
    _check(
        abi.fold_rows(
            out.ctypes.data, rows, g.ctypes.data, int(np.prod(g.shape[1:], dtype=np.int64)), abi.F64, m_pointer, len(m)
        )
    )
    return out


def rho(prompt, responses, response_length):
    """Token ratio N(P+R) / (P+NR)."""
    return abi.rho(prompt, responses, response_length)


def pair_ratio(prompt, responses, response_length):
    """Attention pair ratio A = N(P+R)^2 / (P^2 + NR(2P+R))."""
    return abi.pair_ratio(prompt, responses, response_length)


def saving(
    layout,
    layers=36,
    width=4096,
    mlp_width=12288,
    vocabulary=151936,
    heads=32,
    kv_heads=8,
    head_dim=128,
    element_bytes=2,
):
    """Counted cost of packed and replicated for a Qwen3-style model (default: Qwen3-8B): dict with rho, pair_ratio,
    step_ratio and both costs."""
    shape, out = (
        abi.ModelShape(layers, width, mlp_width, vocabulary, heads, kv_heads, head_dim, element_bytes),
        abi.Saving(),
    )
    _check(abi.saving(C.byref(out), C.byref(layout._c), C.byref(shape)))
    cost = lambda c: {name: getattr(c, name) for name, _ in abi.Cost._fields_}
    return dict(
        packed=cost(out.packed),
        replicated=cost(out.replicated),
        rho=out.rho,
        pair_ratio=out.pair_ratio,
        step_ratio=out.step_ratio,
    )


def advantages(rewards, divide_by_std=True, population=False, epsilon=1e-6):
    """Group-relative advantages of one group's rewards."""
    r = np.ascontiguousarray(rewards, np.float64)
    out, config = np.empty_like(r), abi.AdvantageConfig(divide_by_std, population, epsilon)
    _check(abi.advantages(out.ctypes.data, r.ctypes.data, r.size, C.byref(config)))
    return out


def count(layout, heads=32, kv_heads=8, head_dim=128, dtype="bf16", direction="forward"):
    """What one call of the tiled CPU kernel does, counted without doing it: dict of key_loads, useful_pairs,
    issued_pairs, useful_flops, issued_flops, query_bytes, key_bytes, sum_bytes, ... (struct dkv_counted), over all
    heads, and reads [ceil(T / 128)]: how many query tiles of one key head load each key tile of 128 rows."""
    code = {"f32": abi.F32, "bf16": abi.BF16, "f16": abi.F16}[dtype]
    problem = abi.Attention(
        layout=C.pointer(layout._c), heads=heads, kv_heads=kv_heads, head_dim=head_dim, scale=head_dim**-0.5, dtype=code
    )
    out, reads = abi.Counted(), np.zeros(-(-layout.rows // 128), np.int64)
    _check(abi.count_tiled(C.byref(out), reads.ctypes.data, C.byref(problem), {"forward": 0, "backward": 1}[direction]))
    return dict({name: getattr(out, name) for name, _ in abi.Counted._fields_}, reads=reads)


def policy_loss(
    logprob, old, lengths, advantage, method="dapo", tokens=None, responses=None, max_length=0, **constants
):
    """Loss of a micro-batch and its slopes: (loss, dlogprob [tokens]).

    logprob, old [sum of lengths] nats; lengths, advantage [responses]; tokens and responses count the whole optimizer
    step (default: this micro-batch is all of it); constants override those of the method ("grpo", "dapo", "dr_grpo",
    "gspo", "cispo"; clip_low=..., ...).
    """
    lengths = np.asarray(lengths)
    lp, old = np.ascontiguousarray(logprob, np.float32), np.ascontiguousarray(old, np.float32)
    begin = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    a = np.ascontiguousarray(advantage, np.float64)
    if lp.shape != (begin[-1],) or old.shape != lp.shape or a.shape != lengths.shape:
        raise ValueError("logprob and old need one number a token, %d in all, and advantage one a response" % begin[-1])
    config, stats, slope = abi.PolicyConfig(), abi.PolicyStats(), np.empty_like(lp)
    _check(abi.policy_preset(C.byref(config), method.encode()))
    for name, value in dict(constants, **({"max_length": max_length} if max_length else {})).items():
        if name not in dict(abi.PolicyConfig._fields_):
            raise ValueError("a policy loss has no constant %s" % name)
        setattr(config, name, value)
    batch = abi.PolicyBatch(
        len(lengths), begin.ctypes.data, a.ctypes.data, None, lp.ctypes.data, old.ctypes.data, None, None
    )
    total = abi.Normaliser(
        int(lengths.sum()) if tokens is None else tokens, int((lengths > 0).sum()) if responses is None else responses
    )
    _check(abi.policy_loss(C.byref(stats), slope.ctypes.data, None, C.byref(batch), C.byref(config), C.byref(total)))
    return stats.loss, slope.astype(np.float64)


def rope(x, position, theta=10000.0):
    """The rotary embedding: x [T, heads, D] with row t turned by position[t]; component j is paired with j + D/2."""
    x = np.array(x, np.float32, order="C")
    p, p_pointer = _i32(position)
    if x.ndim != 3 or len(p) != len(x) or x.shape[2] % 2 or (p < 0).any():
        raise ValueError("x must be [T, heads, an even D], and position must hold T numbers >= 0")
    layers, where = abi.P(abi.Layers)(), abi.Where()
    _check(abi.layers_find(C.byref(layers), b"cpu"))
    make = C.CFUNCTYPE(C.c_int, abi.P(abi.Where), C.c_void_p, C.c_int32, C.c_int32, C.c_double)(
        layers.contents.rope_table
    )
    turn = C.CFUNCTYPE(
        C.c_int, abi.P(abi.Where), C.c_void_p, C.c_void_p, abi.I32P, C.c_int32, C.c_int32, C.c_int32, C.c_bool
    )(layers.contents.rope)
    table = np.empty((int(p.max(initial=0)) + 1, x.shape[2]), np.float32)
    _check(make(C.byref(where), table.ctypes.data, len(table), x.shape[2], theta))
    _check(turn(C.byref(where), x.ctypes.data, table.ctypes.data, p_pointer, len(x), x.shape[1], x.shape[2], False))
    return x.astype(np.float64)
