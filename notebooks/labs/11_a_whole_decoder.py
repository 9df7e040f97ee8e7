# %% [markdown]
# # 11 · A whole decoder
#
# *Lab of [chapter 11](../tutorials/11_a_whole_decoder.md), 15 minutes, no GPU.* A decoder of two layers in a few lines of NumPy, attention and rotation by the library; packed and replicated beside each other, operation by operation.

# %%
predict("the one operation of a decoder layer in which rows meet", "attention")
predict("rows that go through the LM head for the seven tokens", 3)
predict("score of row 5 (first of b) with key 1 when a position is a quarter turn", -1)

# %% [markdown]
# ## Your turn: the rotary embedding
#
# `x` [T, heads, D], `position` [T]. Component j is paired with j + D/2; the pair of row t is turned by the angle $position_t \cdot \theta^{-2j/D}$:
#
# $$(x_j,\; x_{j+D/2}) \to (x_j\cos a - x_{j+D/2}\sin a,\;\; x_{j+D/2}\cos a + x_j\sin a)$$


# %%
def turn(x, position, theta=10000.0):
    half = x.shape[2] // 2
    angle = np.asarray(position)[:, None] * theta ** (-2 * np.arange(half) / x.shape[2])  # [T, D/2]
    c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]  # [T, 1, D/2]
    a, b = x[:, :, :half], x[:, :, half:]
    # hole turn: return the turned x, its two halves side by side
    return np.concatenate([a * c - b * s, b * c + a * s], 2)
    # end


# %%
group = seven()
rng = np.random.default_rng(11)
x = rng.standard_normal((7, 2, 16))
half = lambda y: (y[:, :, :8], y[:, :, 8:])
want = dk.rope(x, group.position)
back = dk.rope(np.concatenate([half(x)[0], -half(x)[1]], 2), group.position)
check(
    "turned by the library's positions",
    turn(x, group.position),
    want,
    tolerance=1e-6,
    mistakes=[
        (
            np.concatenate([half(back)[0], -half(back)[1]], 2),
            "that turns the other way: the backward of the rotation",
        ),
        (x, "nothing is turned"),
    ],
)

# %% [markdown]
# ## Positions are those of the path
#
# D = 2, q = k = (1, 0) everywhere, a quarter turn for each position: the score of positions a and b is cos(90° (a - b)).


# %%
def scores(position):
    angle = np.pi / 2 * np.asarray(position)
    turned = np.stack([np.cos(angle), np.sin(angle)], 1)
    return np.where(group.mask(), turned @ turned.T, np.nan).round(9) + 0.0


path, packed_rows = scores(group.position), scores(np.arange(7))
reveal(
    "score of row 5 (first of b) with key 1 when a position is a quarter turn",
    float(path[5, 1]),
    "position 3 and position 1: cos 180°. By packed rows, 5 and 1, it would be cos 360° = %g."
    % packed_rows[5, 1],
)
figure, axs = axes(7.4, 3.6, 2)
for ax, z, title in zip(axs, (path, packed_rows), ("positions on the path", "packed rows (wrong)")):
    ax.imshow(z, cmap="cividis", vmin=-1, vmax=1)
    for i in range(7):
        for j in range(7):
            if group.mask()[i, j]:
                ax.text(
                    j,
                    i,
                    "%g" % z[i, j],
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="white" if z[i, j] < 0.5 else INK,
                )
                if path[i, j] != packed_rows[i, j]:
                    ax.add_patch(
                        plt.Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, edgecolor=COOL[1], linewidth=2)
                    )
    ax.set(title=title, xlabel="key row j", ylabel="query row i", xticks=range(7), yticks=range(7))
show(
    figure,
    "scores of 24 pairs with positions on the path and with packed rows; orange frames where they differ: b on"
    " the prompt",
)

# %% [markdown]
# ## The decoder
#
# RMSNorm, projections, rotation, attention, residual, SwiGLU. Read it for the word `layout`: it stands in one line only.

# %%
C, H, Hkv, D, F, L = 64, 4, 2, 16, 128, 2
weights = [
    {
        name: rng.standard_normal(shape) / np.sqrt(shape[-1])
        for name, shape in (
            ("q", (H * D, C)),
            ("k", (Hkv * D, C)),
            ("v", (Hkv * D, C)),
            ("o", (C, H * D)),
            ("g", (F, C)),
            ("u", (F, C)),
            ("d", (C, F)),
        )
    }
    for _ in range(L)
]
norm = lambda x: x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6)


def decoder(x, layout, position, store=lambda name, value: value):
    """Hidden states [T, C]; store sees, and may change, what every operation gives."""
    for l, w in enumerate(weights):
        h = store("norm %d" % l, norm(x))
        q, k, v = (store("%s %d" % (name, l), h @ w[name].T).reshape(len(x), -1, D) for name in "qkv")
        o = dk.attention(dk.rope(q, position), dk.rope(k, position), v, layout, backend="ref", dtype="f64")["o"]
        x = store("attention, o %d" % l, x + store("attention %d" % l, o).reshape(len(x), -1) @ w["o"].T)
        h = norm(x)
        g = h @ w["g"].T
        x = store("MLP %d" % l, x + (g / (1 + np.exp(-g)) * (h @ w["u"].T)) @ w["d"].T)
    return x


def trace(x, layout, position, change=lambda value: value):
    kept = {}
    decoder(x, layout, position, lambda name, value: kept.setdefault(name, change(value)))
    return kept


# %%
layout = dk.group(12, [5, 3, 6])
ordinary, row_map = layout.replicate()
x = rng.standard_normal((layout.rows, C))
packed = trace(x, layout, layout.position)
copies = trace(x[row_map], ordinary, ordinary.position)
wrong = trace(x, layout, np.arange(layout.rows))
worst = lambda a, b: {name: np.abs(a[name][row_map] - b[name]).max() for name in a}
right, off = worst(packed, copies), worst(wrong, copies)
reveal(
    "the one operation of a decoder layer in which rows meet",
    "attention",
    "all others take a list of rows, %d instead of %d here, and do not ask whose they are."
    % (layout.rows, ordinary.rows),
)
print("packed and replicated differ by less than 1e-12 everywhere:", bool(max(right.values()) < 1e-12))
print("with packed rows as positions they differ first after:", next(name for name, e in off.items() if e > 1e-9))
assert max(right.values()) < 1e-12 and off["MLP 1"] > 1e-2

# %% [markdown]
# ## Which rows need the LM head?
#
# Only rows that predict a token of a response: the last prompt row predicts the first token of every response that has one; a response's last row predicts nothing.


# %%
def head_rows(layout):
    """Rows that go through the LM head, ascending; for one prompt and its responses."""
    rows = []
    P = int(layout.length[0])
    for s in range(1, layout.segments):
        first, end = int(layout.start[s]), int(layout.start[s + 1])
        # hole head: append to rows the rows that predict the tokens first .. end - 1 of this response
        if end > first:
            rows += [P - 1] + list(range(first, end - 1))
        # end
    return sorted(set(rows))


# %%
for tried in (group, layout, dk.group(4, [1, 0, 2]), dk.group(3, [0])):
    want = np.unique(tried.predictions()[:, 0])
    S = range(1, tried.segments)
    check(
        "rows of the head of %r" % tried,
        np.array(head_rows(tried), int),
        want,
        mistakes=[
            (lambda got: not want.size, "where nothing is sampled, the last prompt row predicts nothing either"),
            (
                np.arange(int(tried.length[0]), tried.rows),
                (
                    "each row predicts the token after it, so the rows are one before their tokens: the first"
                    " token comes from the last prompt row"
                ),
            ),
            (
                np.array(
                    sorted(
                        {int(tried.length[0]) - 1}
                        | {i for s in S for i in range(tried.start[s], tried.start[s + 1])}
                    )
                ),
                "the last row of a response predicts nothing that was sampled",
            ),
        ],
    )
reveal(
    "rows that go through the LM head for the seven tokens",
    len(head_rows(group)),
    "row 2 for both responses, rows 3 and 5 for their second tokens; 4 predictions in all.",
)

# %% [markdown]
# ## Where does bf16 leave the path?
#
# Every operation's result rounded to bf16, against double. A rounding changes a number by at most $2^{-8} = 0.4\,\%$, in the mean square by some two fifths of that; the residual stream collects them.

# %%
size = lambda value: np.linalg.norm(value)
rough = trace(x, layout, layout.position, lambda value: dk.round_to(value, "bf16").reshape(value.shape))
error = {name: size(rough[name] - packed[name]) / size(packed[name]) for name in packed}
figure, ax = axes(7.2, 3.3)
ax.bar(
    range(len(error)),
    [100 * e for e in error.values()],
    color=[COOL[int(name[-1])] for name in error],
    edgecolor="white",
)
ax.axhline(100 * 2.0**-8, color=INK, linestyle=":", linewidth=1)
ax.text(-0.5, 100 * 2.0**-8 + 0.1, "dotted: one rounding,\nat most", fontsize=8)
ax.set(ylabel="relative error, %", title="results kept in bf16 (blue: layer 0, orange: layer 1)")
ax.set_xticks(range(len(error)), list(error), rotation=55, ha="right", fontsize=8)
show(
    figure,
    "relative error of every operation's result in bf16: about 0.2 % at the first one, growing slowly with depth",
)
print("first %.2f %%, last %.2f %%" % (100 * error["norm 0"], 100 * error["MLP 1"]))

# %% [wrong] turn | that turns the other way
# return np.concatenate([a * c + b * s, b * c - a * s], 2)

# %% [wrong] turn | the first difference is at
# return np.concatenate([a * c - b * s, b * c - a * s], 2)

# %% [wrong] head | each row predicts the token after it
# rows += list(range(first, end))

# %% [wrong] head | the last row of a response predicts nothing
# rows += [P - 1] + list(range(first, end))

# %% [wrong] head | where nothing is sampled
# rows += [P - 1] + list(range(first, end - 1))
