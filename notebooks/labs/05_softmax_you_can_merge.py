# %% [markdown]
# # 05 · A softmax that can be merged
#
# *Lab of [chapter 05](../tutorials/05_softmax_you_can_merge.md), 15 minutes, no GPU.* Attention over keys that arrive in pieces: the state (m, l, O), how two states merge, and the picture of a row walking over its tiles.

# %%
predict("the score from which on exp(score) overflows in f32", 88.7)
predict("the factor on the old sums when a tile raises the maximum from ln 2 to ln 8", 0.25)

# %% [markdown]
# Row 6 of the seven tokens sees the weights w = 1, 1, 2 of the prompt and 4, 8 of b; its scores are $\ln w$, its values 8, 0, 4 and -8, 6. A **part** of its keys is kept as three numbers:
#
# $$m = \max s \qquad l = \sum e^{s-m} \qquad O = \sum e^{s-m}\, v$$
#
# A part without keys has $m=-\infty$, $l=0$, $O=0$.

# %%
score, value = np.log([1, 1, 2, 4, 8.0]), np.array([8, 0, 4, -8, 6.0])


def part(s, v):
    """(m, l, O) of some keys."""
    if len(s) == 0:
        return -np.inf, 0.0, 0.0
    weight = np.exp(s - s.max())
    return s.max(), weight.sum(), weight @ v


for name, keys in (("prompt", slice(0, 3)), ("b", slice(3, 5))):
    m, l, O = part(score[keys], value[keys])
    print("%-6s  m = ln %g   l = %g   O = %g" % (name, np.exp(m).round(9), l, O))

# %% [markdown]
# ## Your turn: merge two parts
#
# Both sums were made with their own maximum taken out. Bring them to the common one, then add. Mind parts without keys: $-\infty - (-\infty)$ is not a number.


# %%
def merge(a, b):
    # hole merge: return (m, l, O) of the keys of both parts together
    m = max(a[0], b[0])
    if m == -np.inf:
        return a
    fa, fb = np.exp(a[0] - m), np.exp(b[0] - m)
    return m, a[1] * fa + b[1] * fb, a[2] * fa + b[2] * fb
    # end


# %%
def answer(state):
    with np.errstate(all="ignore"):
        return np.array([state[2] / state[1], state[0] + np.log(state[1])])


def quiet_merge(*pair):
    with np.errstate(all="ignore"):
        return merge(*pair)


prompt, b, empty = part(score[:3], value[:3]), part(score[3:], value[3:]), part(score[:0], value[:0])
mistakes = [
    (
        np.array([20 / 7, np.log(8) + np.log(3.5)]),
        "the old sums were made with another maximum: they need the factor exp(m_old - m_new)",
    ),
    (
        np.array([2, np.log(2) + np.log(8.0)]) + [0, np.log(2)],
        "both factors are turned round: exp(m_part - m), not exp(m - m_part)",
    ),
]
for name, pair in (("prompt, then b", (prompt, b)), ("b, then prompt", (b, prompt))):
    check("o and lse, " + name, answer(quiet_merge(*pair)), np.array([2, np.log(16)]), mistakes=mistakes)
for name, pair in (("an empty part first", (empty, b)), ("an empty part last", (b, empty))):
    check(
        name,
        np.array(quiet_merge(*pair)),
        np.array(b),
        mistakes=[(lambda got: np.isnan(got).any(), "a part without keys made a NaN: -inf - (-inf)")],
    )
check(
    "two empty parts",
    np.array(quiet_merge(empty, empty)),
    np.array(empty),
    mistakes=[
        (
            lambda got: np.isnan(got).any(),
            "two parts without keys made a NaN: exp(-inf - (-inf)); such a part must be treated as what it is",
        )
    ],
)
with np.errstate(all="ignore"):
    far = quiet_merge(part(np.array([1e5]), np.array([1.0])), part(np.array([1e5 + np.log(3)]), np.array([5.0])))
check(
    "scores of 100000",
    answer(far),
    np.array([4, 1e5 + np.log(4)]),
    mistakes=[
        (lambda got: not np.isfinite(got).all(), "exp(100000) overflows: only differences may be exponentiated")
    ],
)

# %%
reveal(
    "the score from which on exp(score) overflows in f32",
    float(np.log(np.finfo(np.float32).max)),
    "ln(3.4e38); in f16 it is ln 65504 = 11.1, and scores of 100 are no rarity.",
    3,
)
reveal(
    "the factor on the old sums when a tile raises the maximum from ln 2 to ln 8",
    float(np.exp(np.log(2) - np.log(8))),
    "exp(ln 2 - ln 8) = 2/8.",
    3,
)

# %% [markdown]
# ## A row walks over its tiles
#
# The same row in tiles of two keys of the packed group: (0, 1), (2, 3), (4, 5), (6). Keys 3 and 4 belong to a and are masked. Each step merges one tile and forgets it.

# %%
group = seven()
all_scores, all_values = np.log([1, 1, 2, 4, 8, 4, 8.0]), np.array([8, 0, 4, 16, 2, -8, 6.0])
state, walk = empty, []
for j in range(0, 7, 2):
    keys = [n for n in range(j, min(j + 2, 7)) if group.mask()[6, n]]
    old = state
    state = merge(state, part(all_scores[keys], all_values[keys]))
    walk.append((j, keys, state, np.exp(old[0] - state[0])))
    print(
        "keys %-8s m = ln %g  factor %-4g l = %g  O = %g"
        % (
            tuple(keys),
            np.exp(state[0]).round(9),
            np.round(walk[-1][3], 9),
            np.round(state[1], 9),
            np.round(state[2], 9),
        )
    )
print("o = %g, lse = ln %g" % (np.round(state[2] / state[1], 9), np.exp(answer(state)[1]).round(9)))

# %%
figure, axs = axes(7.8, 2.7, 3)
step = np.arange(1, 5)
for ax, what, title in zip(
    axs,
    ([np.exp(s[0]) for _, _, s, _ in walk], [s[1] for _, _, s, _ in walk], [s[2] for _, _, s, _ in walk]),
    ("exp(m), the largest weight so far", "l, in units of exp(m)", "O, in units of exp(m)"),
):
    ax.bar(step, what, color=[PROMPT, PROMPT, RESPONSES[1], RESPONSES[1]], edgecolor=INK)
    ax.set(title=title, xticks=step, xticklabels=["(0,1)", "(2)", "(5)", "(6)"], xlabel="keys of the tile")
    ax.title.set_fontsize(9)
    for x, y in zip(step, what):
        ax.text(x, y, "%g" % np.round(y, 6), ha="center", va="bottom" if y >= 0 else "top", fontsize=8)
    ax.margins(y=0.15)
axs[2].axhline(0, color=INK, linewidth=0.8)
show(
    figure,
    "the state of row 6 after each tile: exp(m) is 1, 2, 4, 8, l stays 2, O goes 8, 8, -4, 4; prompt tiles blue,"
    " tiles of b warm",
)

# %% [markdown]
# ## What the maximum is for
#
# f32 arithmetic with and without it, for scores of which the largest lies at a level: the plain sum breaks at 88.7, and below -103 all its weights are 0.

# %%
level = np.linspace(-130, 130, 105)
plain, safe = [], []
rng = np.random.default_rng(2)
s0, v0 = rng.standard_normal(64).astype(np.float32), rng.standard_normal(64).astype(np.float32)
s0 -= s0.max()  # the level is the largest score
with np.errstate(all="ignore"):
    for c in level.astype(np.float32):
        exact = np.exp(s0.astype(float)) @ v0 / np.exp(s0.astype(float)).sum()
        weight = np.exp(s0 + c)
        plain.append(abs(float(weight @ v0 / weight.sum()) - exact))
        m, l, O = merge(part(s0[:40] + c, v0[:40]), part(s0[40:] + c, v0[40:]))
        safe.append(abs(O / l - exact))
figure, ax = axes(6.6, 3.0)
ax.semilogy(level, safe, color=COOL[0], label="merged parts, maximum taken out")
ax.semilogy(level, plain, color=COOL[1], linestyle="--", label="plain exp")
ax.axvspan(88.7, 130, color=GHOST, alpha=0.5)
ax.axvspan(-130, -103, color=GHOST, alpha=0.5)
ax.text(109, 1e-9, "overflow", ha="center", fontsize=8)
ax.text(-117, 1e-9, "all 0", ha="center", fontsize=8)
ax.set(xlabel="level of the scores", ylabel="error of o in f32", title="one row of 64 keys")
ax.legend(fontsize=8, loc="upper center")
show(
    figure,
    "the merged softmax is right at every level of the scores; the plain one has no finite result near 88.7 and"
    " above, loses digits below -87 and is 0/0 at the left end",
)
assert np.isnan(plain[-1]) and np.isnan(plain[0]) and max(safe) < 1e-4

# %% [wrong] merge | they need the factor
# return max(a[0], b[0]), a[1] + b[1], a[2] + b[2]

# %% [wrong] merge | two parts without keys made a NaN
# m = max(a[0], b[0])
# fa, fb = np.exp(a[0] - m), np.exp(b[0] - m)
# return m, a[1] * fa + b[1] * fb, a[2] * fa + b[2] * fb

# %% [wrong] merge | only differences may be exponentiated
# if a[1] == 0 or b[1] == 0:
#     return b if a[1] == 0 else a
# la, lb = a[1] * np.exp(a[0]), b[1] * np.exp(b[0])
# return 0.0, la + lb, a[2] * np.exp(a[0]) + b[2] * np.exp(b[0])
