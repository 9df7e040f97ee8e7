# %% [markdown]
# # 01 · Count the tokens
#
# *Lab of [chapter 01](../tutorials/01_count_the_tokens.md), 15 minutes, no GPU.* How many times fewer tokens, how many times fewer attention pairs, and how both ratios move with P, N and R.

# %%
predict("rho, tokens: P = 4096, N = 16, R = 512", 6)
predict("A, attention pairs of the same group", 3.9)
predict("which of the two grows faster when N goes from 16 to 256 (rho or A)", "rho")

# %% [markdown]
# ## The pairs of seven tokens
#
# A row attends to itself and to everything before it on its own path. The two masks below hold every pair that is computed: 30 in the ordinary batch, 24 in the packed one. Grey is what the ordinary batch computes twice.

# %%
group = seven()
ordinary, row_map = group.replicate()
figure, axs = axes(7.4, 3.6, 2)
draw_mask(axs[0], group, title="packed: %d pairs" % group.pairs)
draw_mask(axs[1], ordinary, title="replicated: %d pairs" % ordinary.pairs, copies=(group, row_map))
for i in range(5, 8):
    for j in range(5, i + 1):
        axs[1].add_patch(plt.Rectangle((j, i), 1, 1, facecolor=GHOST, hatch="//", edgecolor="white"))
show(
    figure,
    "packed mask with 24 pairs; replicated mask with 30, of which the 6 pairs of the second prompt copy are grey",
)

# %% [markdown]
# ## Your turn: count pairs without visiting them
#
# A sequence of n rows has 1 + 2 + ... + n = n(n+1)/2 pairs. For a packed group, count the pairs of the prompt with itself once, then what each response adds.


# %%
def packed_pairs(prompt, lengths):
    total = prompt * (prompt + 1) // 2
    for length in lengths:
        # hole pairs: add to total the pairs of one response, with the prompt and with itself
        total += length * prompt + length * (length + 1) // 2
        # end
    return total


# %%
for prompt, lengths in ((3, [2, 2]), (0, [4]), (7, [5, 0, 2]), (4096, [512] * 16)):
    P, L = prompt, lengths
    check(
        "pairs of P=%d, N=%d" % (prompt, len(lengths)),
        packed_pairs(prompt, lengths),
        dk.group(prompt, lengths).pairs,
        mistakes=[
            (
                P * (P + 1) // 2 + sum(r * (r + 1) // 2 for r in L),
                "responses read the prompt, too: every response row sees all P prompt rows",
            ),
            (
                P * (P + 1) // 2 + sum(r * P + r * (r - 1) // 2 for r in L),
                "a row sees itself: n(n+1)/2, not n(n-1)/2",
            ),
            (
                sum((P + r) * (P + r + 1) // 2 for r in L),
                "the prompt's pairs with itself are counted once for each response",
            ),
            (
                P * (P + 1) // 2 + sum(L) * P + sum(L) * (sum(L) + 1) // 2,
                "siblings do not see each other: each response has its own triangle",
            ),
        ],
    )

# %% [markdown]
# ## Two ratios
#
# $\rho = \dfrac{N(P+R)}{P+NR}$ counts tokens: everything that is done for each row. $A = \dfrac{N(P+R)^2}{P^2+NR(2P+R)}$ counts pairs: attention alone.

# %%
saving = dk.saving(dk.group(4096, [512] * 16))
reveal("rho, tokens: P = 4096, N = 16, R = 512", dk.rho(4096, 16, 512), "16 x 4608 rows become 4096 + 16 x 512.")
reveal(
    "A, attention pairs of the same group",
    saving["pair_ratio"],
    "responses still read the whole prompt; only the prompt's pairs with itself are saved.",
    3,
)
assert abs(saving["pair_ratio"] - dk.pair_ratio(4096, 16, 512)) < 0.01
small, large = [(dk.rho(4096, n, 512), dk.pair_ratio(4096, n, 512)) for n in (16, 256)]
reveal(
    "which of the two grows faster when N goes from 16 to 256 (rho or A)",
    "rho" if large[0] / small[0] > large[1] / small[1] else "A",
    "rho from %.2f to %.2f, A from %.2f to %.2f; their limits are (P+R)/R = %.0f and (P+R)^2/(R(2P+R)) = %.2f."
    % (small[0], large[0], small[1], large[1], 4608 / 512, 4608**2 / (512 * (2 * 4096 + 512))),
)

# %%
x = np.logspace(-1, 3, 81)  # P / R
n = np.logspace(0, 7, 71, base=2)  # N
figure, axs = axes(7.6, 3.6, 2, sharey=True)
for ax, ratio, name in ((axs[0], dk.rho, "rho, tokens"), (axs[1], dk.pair_ratio, "A, attention pairs")):
    z = np.array([[ratio(a, b, 1.0) for a in x] for b in n])
    filled = ax.contourf(
        x, n, z, levels=2.0 ** np.arange(0, 7.01, 0.5), norm=plt.matplotlib.colors.LogNorm(1, 128), cmap="cividis"
    )
    lines = ax.contour(x, n, z, levels=[1.1, 2, 4, 8, 16, 32, 64], colors="white", linewidths=0.8)
    ax.clabel(lines, fmt="%g", fontsize=8)
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="P / R (prompt over response)",
        title=name,
        yticks=[1, 4, 16, 64],
        yticklabels=["1", "4", "16", "64"],
    )
    ax.minorticks_off()
axs[0].set_ylabel("N (responses)")
show(
    figure,
    "contours of rho and A over P/R and N: both are 1 along N = 1 and at small P/R, both tend to N at large P/R,"
    " and A lags behind rho",
)

# %% [markdown]
# Read the two pictures at P/R = 8 and N = 16: 6 on the left, 3.9 on the right. To save as many pairs as tokens, the prompt must be longer still.
#
# ## Your turn: how long a prompt?
#
# Solve rho = target for P, with N and R given.


# %%
def prompt_for(target, N, R):
    # hole solve: return the P at which N (P + R) / (P + N R) equals target
    return N * R * (target - 1) / (N - target)
    # end


# %%
for target, N, R in ((16, 32, 1024), (2, 4, 100), (1, 8, 10)):
    P = prompt_for(target, N, R)
    check(
        "rho at the P that you return, N=%d, R=%d" % (N, R),
        dk.rho(P, N, R) if P is not None and P >= 0 else P,
        float(target),
        mistakes=[
            (
                dk.rho(target * R, N, R),
                "P = target x R holds only for many responses, where rho is (P+R)/R: the share of N R counts",
            )
        ],
    )
print(
    "rho = 16 with N = 32, R = 1024 needs P = %.0f; there A is %.1f"
    % (prompt_for(16, 32, 1024), dk.pair_ratio(prompt_for(16, 32, 1024), 32, 1024))
)

# %% [markdown]
# What a whole training step saves lies between the two, for most of a decoder is per-token work:

# %%
for P, R in ((8192, 1024), (512, 4096)):
    s = dk.saving(dk.group(P, [R] * 16))
    print(
        "P = %4d, 16 x %4d: rho %.2f, A %.2f, step of Qwen3-8B %.2f times fewer FLOPs"
        % (P, R, s["rho"], s["pair_ratio"], s["step_ratio"])
    )

# %% [wrong] pairs | responses read the prompt, too
# total += length * (length + 1) // 2

# %% [wrong] pairs | a row sees itself
# total += length * prompt + length * (length - 1) // 2

# %% [wrong] pairs | the prompt's pairs with itself are counted once for each response
# total += length * prompt + length * (length + 1) // 2 + (prompt * (prompt + 1) // 2 if total > prompt * (prompt + 1) // 2 or lengths.index(length) else 0)

# %% [wrong] solve | holds only for many responses
# return target * R
