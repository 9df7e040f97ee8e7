# %% [markdown]
# # 04 · Packed equals replicated
#
# *Lab of [chapter 04](../tutorials/04_packed_equals_replicated.md), 15 minutes, no GPU.* One prompt is enough, forward and backward: copy rows on the way down, add copies on the way up. And what breaks when an assumption is broken.

# %%
predict("how many of the seven outputs change when the tokens of a are replaced", 2)
predict("the gradient of prompt row 0, when its two copies receive 5 and 2", 7)

# %%
group = seven()
ordinary, row_map = group.replicate()
wide = lambda x: np.concatenate(
    [np.asarray(x, float)[:, None, None], np.zeros((len(x), 1, 7))], 2
)  # [T] to [T, 1 head, 8]
w, v = np.array([1, 1, 2, 4, 8, 4, 8.0]), np.array([8, 0, 4, 16, 2, -8, 6.0])
q, k, dout = wide(np.ones(7)), wide(np.log(w)), np.array([1, 2, 4, 8, 16, 8, 16.0])
attend = lambda q, k, v, layout, **more: dk.attention(
    q, k, v, layout, scale=1.0, backend="ref", dtype="f64", **more
)
print("row_map", row_map.tolist())

# %% [markdown]
# ## Forward: a gather
#
# Ordinary row r is a copy of packed row `row_map[r]`. If all inputs of a layer are copies, are its outputs?

# %%
o = attend(q, k, wide(v), group)["o"][:, 0, 0]
copies = attend(q[row_map], k[row_map], wide(v)[row_map], ordinary)["o"][:, 0, 0]
print("packed   ", " ".join("%4.0f" % x for x in o))
print("ordinary ", " ".join("%4.0f" % x for x in copies))
check("the ordinary output is a copy of the packed one", copies, o[row_map])

# %%
changed = v.copy()
changed[3:5] = 1000, -1000  # other tokens in a
moved = np.flatnonzero(attend(q, k, wide(changed), group)["o"][:, 0, 0] != o)
reveal(
    "how many of the seven outputs change when the tokens of a are replaced",
    len(moved),
    "rows %s: a itself. The prompt and b do not see it, so not one bit of them moves." % moved.tolist(),
)

# %% [markdown]
# ## Backward: a sum
#
# The gradient that arrives is 1, 2, 4 | 8, 16 | 8, 16. In the ordinary batch the prompt's own terms count once, on the first copy. Each of the ten rows then has its gradient; yours is the way back to seven.

# %%
dout_copies = dout[row_map].copy()
dout_copies[5:8] = 0  # rows 5, 6, 7 repeat the prompt: its own loss is counted once
dv_copies = attend(q[row_map], k[row_map], wide(v)[row_map], ordinary, do=wide(dout_copies))["dv"][:, 0, 0]
print("dv in ten rows", dv_copies.round(9).tolist())


def fold(gradient, row_map, rows):
    """[ordinary rows] to [rows]: what each packed row receives from its copies."""
    out = np.zeros(rows)
    # hole fold: put into out[t] what the copies of packed row t, the r with row_map[r] == t, hand up
    for r, t in enumerate(row_map):
        out[t] += gradient[r]
    # end
    return out


# %%
packed = attend(q, k, wide(v), group, do=wide(dout))
counts = np.bincount(row_map, minlength=7)
last, first = np.zeros(7), np.zeros(7)
last[row_map] = dv_copies
first[row_map[::-1]] = dv_copies[::-1]
check(
    "folded dv is the packed dv",
    fold(dv_copies, row_map, 7),
    packed["dv"][:, 0, 0].round(9),
    mistakes=[
        (
            np.bincount(row_map, dv_copies, 7) / counts,
            "copies are averaged; f(x) + f(x) has the derivative 2 f': they are added",
        ),
        (last, "only the last copy counts: = where += belongs"),
        (first, "only the first copy counts"),
    ],
)
rng = np.random.default_rng(0)
random = rng.standard_normal(ordinary.rows)
check("and it is the library's fold", fold(random, row_map, 7), dk.fold(random, row_map, 7))
reveal(
    "the gradient of prompt row 0, when its two copies receive 5 and 2",
    fold(dv_copies, row_map, 7)[0],
    "5 from the copy with a, 2 from the copy with b.",
)

# %%
figure, ax = axes(7.2, 2.9)
for r, t in enumerate(row_map):
    ghost = r in (5, 6, 7)
    ax.add_patch(
        plt.Rectangle(
            (r, 2),
            0.9,
            0.7,
            facecolor=GHOST if ghost else colours(group)[t],
            hatch="//" if ghost else "",
            edgecolor="white",
        )
    )
    ax.text(
        r + 0.45,
        2.35,
        "%g" % dv_copies[r].round(9),
        ha="center",
        va="center",
        fontsize=9,
        color="white" if t < 3 and not ghost else INK,
    )
    ax.annotate(
        "",
        (1.5 + t + 0.45, 0.75),
        (r + 0.45, 1.98),
        arrowprops={"arrowstyle": "->", "color": PROMPT if t < 3 else "#888888", "linewidth": 1},
    )
for t in range(7):
    ax.add_patch(plt.Rectangle((1.5 + t, 0), 0.9, 0.7, facecolor=colours(group)[t], edgecolor="white"))
    ax.text(
        1.5 + t + 0.45,
        0.35,
        "%g" % packed["dv"][t, 0, 0].round(9),
        ha="center",
        va="center",
        fontsize=9,
        color="white" if t < 3 else INK,
    )
ax.text(-0.2, 2.35, "ten copies", ha="right", va="center")
ax.text(-0.2, 0.35, "seven rows", ha="right", va="center")
ax.set(xlim=(-2, 10.2), ylim=(-0.2, 2.9), title="dv: two arrows end in each prompt row")
ax.axis("off")
show(
    figure,
    "ten boxes with the dv of each copy and arrows into seven boxes; each prompt row receives the sum of two"
    " copies: 5+2, 4+2, 6+4",
)

# %% [markdown]
# ## What it assumes
#
# A batch normalisation subtracts the mean over *all rows of the batch*. The ordinary batch counts the prompt twice in that mean.

# %%
print("mean of o over ten rows %.2f, over seven rows %.2f" % (copies.mean(), o.mean()))
broken = copies - copies.mean() - (o - o.mean())[row_map]
print("after a batch normalisation the two differ by %.2f in every row" % np.abs(broken).max())
assert np.abs(broken).max() > 0.2

# %% [markdown]
# And the mistake that programs make most easily: a rotary position that counts packed rows. Row 5, the first token of b, stands at position 3; here b is computed with both, and then a is made one token longer.


# %%
def first_of_b(layout, position):
    """The output of b's first token, every row holding one and the same token, its q and k turned by position."""
    token = np.random.default_rng(5).standard_normal((3, 1, 8))
    q, k, v = (np.repeat(x[None], layout.rows, 0) * (1 + 0.1 * layout.position[:, None, None]) for x in token)
    return dk.attention(dk.rope(q, position), dk.rope(k, position), v, layout, backend="ref", dtype="f64")["o"][
        layout.start[2], 0
    ]


longer = dk.group(3, [3, 2])
right = np.abs(first_of_b(group, group.position) - first_of_b(longer, longer.position)).max()
wrong = np.abs(first_of_b(group, np.arange(7)) - first_of_b(longer, np.arange(8))).max()
print("a grows by one token; b moves by %.1e with path positions, by %.1e with packed rows" % (right, wrong))
assert right == 0 and wrong > 1e-3

# %% [wrong] fold | copies are averaged
# for r, t in enumerate(row_map):
#     out[t] += gradient[r] / list(row_map).count(t)

# %% [wrong] fold | only the last copy counts
# for r, t in enumerate(row_map):
#     out[t] = gradient[r]

# %% [wrong] fold | only the first copy counts
# for r, t in reversed(list(enumerate(row_map))):
#     out[t] = gradient[r]
