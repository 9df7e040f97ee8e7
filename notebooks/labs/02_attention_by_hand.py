# %% [markdown]
# # 02 · Attention by hand
#
# *Lab of [chapter 02](../tutorials/02_attention_by_hand.md), 15 minutes, no GPU.* One row of attention on paper, then in NumPy, then held against the definition in C; and how much of it 16 bits can keep.
#
# The seven tokens: every query is 1, the keys are $\ln w$ with w = 1, 1, 2 | 4, 8 | 4, 8, the values 8, 0, 4 | 16, 2 | -8, 6, the scale is 1.

# %%
predict("the output of row 3, the first token of a", 10)
predict("the output of row 6, the last token of b", 2)
predict("how many times larger the error of bf16 is than that of f16", 8)

# %%
group = seven()
w = np.array([1, 1, 2, 4, 8, 4, 8.0])
q, k, v = np.ones(7), np.log(w), np.array([8, 0, 4, 16, 2, -8, 6.0])
print(
    "row 3 sees keys",
    np.flatnonzero(group.mask()[3]).tolist(),
    "  row 6 sees keys",
    np.flatnonzero(group.mask()[6]).tolist(),
)

# %% [markdown]
# ## Your turn: one row
#
# `score` [n] holds the scores of the n keys that the row sees, `value` [n] their values. With $l = \sum_j e^{s_j}$, the weights are $p_j = e^{s_j}/l$, the output is $o = \sum_j p_j v_j$ and $lse = \ln l$. Scores may be 2000: $e^{2000}$ is not a number of any format, so take the largest score out first.


# %%
def one_row(score, value):
    # hole row: return (o, lse), the weighted mean of value and the logarithm of the sum of exp(score)
    m = score.max()
    weight = np.exp(score - m)
    return float(weight @ value / weight.sum()), float(m + np.log(weight.sum()))
    # end


# %%
def at_row(i):
    seen = np.flatnonzero(group.mask()[i])
    with np.errstate(all="ignore"):
        return np.array(one_row(q[i] * k[seen], v[seen]))


everything = [w[: i + 1] @ v[: i + 1] / w[: i + 1].sum() for i in range(7)]
check(
    "row 3: o and lse",
    at_row(3),
    np.array([10, np.log(8)]),
    mistakes=[
        (np.array([80, np.log(8)]), "o is not divided by the sum of the weights"),
        (np.array([10, 8.0]), "lse is the logarithm of the sum"),
        (np.array([10, np.log(2)]), "lse lacks the maximum that was taken out: ln l = m + ln of the shifted sum"),
        (np.array([5.5, np.log(8)]), "the values are not weighted"),
    ],
)
check("row 6: o and lse", at_row(6), np.array([2, np.log(16)]))
with np.errstate(all="ignore"):
    far = np.array(one_row(np.array([2000.0, 2000 + np.log(3)]), np.array([0.0, 4])))
check(
    "scores of 2000",
    far,
    np.array([3, 2000 + np.log(4)]),
    mistakes=[(lambda got: not np.isfinite(got).all(), "exp(2000) overflows: take the largest score out first")],
)

# %%
reveal(
    "the output of row 3, the first token of a",
    at_row(3)[0],
    "weights 1, 1, 2, 4 over 8, values 8, 0, 4, 16: 1 + 0 + 1 + 8.",
)
reveal(
    "the output of row 6, the last token of b",
    at_row(6)[0],
    "it sees 8, 0, 4 and -8, 6, but not the 16 of its sibling.",
)
p = np.where(group.mask(), w[None, :], 0) / (group.mask() @ w)[:, None]
figure, axs = axes(7.6, 3.5, 2, gridspec_kw={"width_ratios": [1.15, 1]})
image = axs[0].imshow(np.where(group.mask(), p, np.nan), cmap="cividis", vmin=0, vmax=1)
for i in range(7):
    for j in range(7):
        if group.mask()[i, j]:
            axs[0].text(
                j,
                i,
                "%d/%d" % (w[j], (group.mask() @ w)[i]),
                ha="center",
                va="center",
                fontsize=7,
                color="white" if p[i, j] < 0.6 else INK,
            )
axs[0].set(title="weights p", xlabel="key j", ylabel="query i")
figure.colorbar(image, ax=axs[0], shrink=0.8)
axs[1].bar(range(7), p @ v, color=colours(group), edgecolor=INK)
axs[1].set(
    title="outputs o = p v",
    xlabel="row",
    xticks=range(7),
    xticklabels=["%d %s" % (i, c) for i, c in enumerate(letters(group))],
)
axs[1].axhline(0, color=INK, linewidth=0.8)
show(figure, "left: the 24 weights, each row adding up to 1; right: the outputs 8, 4, 4, 10, 6, -2, 2")

# %% [markdown]
# ## Against the definition in C
#
# The library wants a head size that is a multiple of 8, so the one component is padded with zeros, and the scale is given as 1.

# %%
wide = lambda x: np.concatenate(
    [np.asarray(x, float)[:, None, None], np.zeros((len(x), 1, 7))], 2
)  # [T] to [T, 1 head, 8]
got = dk.attention(wide(q), wide(k), wide(v), group, scale=1.0, backend="ref", dtype="f64")
for i in range(7):
    check("row %d" % i, at_row(i), np.array([got["o"][i, 0, 0], got["lse"][0, i]]))

# %% [markdown]
# ## Error against precision
#
# The same random problem on the fast kernel in three storage types, held against double precision with the *same* rounded inputs. What is left is arithmetic and the rounding of the output. That is off by half a unit in the last place at most, $2^{-11}$ of a number for f16 (11 bits) and $2^{-8}$ for bf16 (8 bits); in the mean square by some two fifths of it.

# %% varies
rng = np.random.default_rng(1)
layout = dk.group(96, [24] * 4)
error = {}
for D in (16, 32, 64, 128):
    for dtype in ("f32", "f16", "bf16"):
        x = [dk.round_to(rng.standard_normal((layout.rows, 2, D)), dtype) for _ in range(3)]
        exact = dk.attention(*x, layout, backend="ref", dtype="f64")["o"]
        fast = dk.attention(*x, layout, backend="cpu", dtype=dtype)["o"]
        error[dtype, D] = np.linalg.norm(fast - exact) / np.linalg.norm(exact)
ratio = np.mean([error["bf16", D] / error["f16", D] for D in (16, 32, 64, 128)])
reveal(
    "how many times larger the error of bf16 is than that of f16",
    float(ratio),
    "f16 keeps three bits more; both round the output once.",
    2,
)
figure, ax = axes(6.2, 3.2)
for dtype, bits, marker, colour in (
    ("f32", 24, "o", COOL[0]),
    ("f16", 11, "s", COOL[2]),
    ("bf16", 8, "^", COOL[1]),
):
    ax.plot(
        [16, 32, 64, 128], [error[dtype, D] for D in (16, 32, 64, 128)], marker=marker, color=colour, label=dtype
    )
    ax.axhline(2.0**-bits, color=colour, linestyle=":", linewidth=1)
ax.set(
    xscale="log",
    yscale="log",
    xticks=[16, 32, 64, 128],
    xticklabels=["16", "32", "64", "128"],
    xlabel="head size D",
    ylabel="relative error of o",
    title="error against double (dotted: half a unit in the last place of 1)",
)
ax.minorticks_off()
ax.legend(loc="center right")
show(
    figure,
    "relative errors hardly move with the head size: f16 and bf16 lie at two fifths of half a unit in their last"
    " place, f32 a few times above, for there the arithmetic counts",
)

# %% varies
for D in (16, 128):
    assert error["f32", D] < 1e-6 and error["f16", D] < 2**-11 and error["bf16", D] < 2**-8, error
print({"%s, D=%d" % key: "%.1e" % value for key, value in error.items()})

# %% [wrong] row | o is not divided by the sum of the weights
# m = score.max()
# weight = np.exp(score - m)
# return float(weight @ value * np.exp(m)), float(m + np.log(weight.sum()))

# %% [wrong] row | lse lacks the maximum
# weight = np.exp(score - score.max())
# return float(weight @ value / weight.sum()), float(np.log(weight.sum()))

# %% [wrong] row | exp(2000) overflows
# weight = np.exp(score)
# return float(weight @ value / weight.sum()), float(np.log(weight.sum()))
