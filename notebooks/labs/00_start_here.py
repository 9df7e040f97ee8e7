# %% [markdown]
# # 00 · Start here
#
# *Lab of [chapter 00](../tutorials/00_start_here.md), 10 minutes, no GPU.* A lab goes in four beats: you **predict** a number, **run** a cell, the result is **revealed** beside your guess, and a **check** refuses what is wrong. All arithmetic is done by the project's C library, through [dualkv.py](dualkv.py).

# %% [markdown]
# ## Predict
#
# A prompt of P = 1000 tokens has N = 8 responses of R = 100. The ordinary batch holds the prompt in front of every response; the packed one holds it once. Write a number in place of the three dots (or `None`, to go on without a guess).

# %%
predict("rows of the ordinary batch, N = 8, P = 1000, R = 100", 8800)
predict("rows of the packed batch", 1800)

# %% [markdown]
# ## The seven tokens
#
# All labs share one group: a prompt of 3 tokens (p) and two responses, a and b, of 2. This is its layout, and who may look at whom.

# %%
group = seven()
print(group.draw())

# %%
figure, ax = axes(4.2, 3.8)
draw_mask(ax, group, title="seven tokens: who sees whom")
show(figure, "the mask of seven tokens; both responses see the blue prompt, neither sees the other")

# %% [markdown]
# ## Your turn: count the rows
#
# Two functions. `lengths` holds the length of each response; they need not be equal, and one may be 0. (Even an empty response has its copy of the prompt in the ordinary batch.)


# %%
def replicated_rows(prompt, lengths):
    # hole replicated: return how many rows the ordinary batch has, one prompt for each response
    return sum(prompt + length for length in lengths)
    # end


def packed_rows(prompt, lengths):
    # hole packed: return how many rows the packed batch has, one prompt for all
    return prompt + sum(lengths)
    # end


# %%
for prompt, lengths in ((3, [2, 2]), (1000, [100] * 8), (5, [4, 0, 6])):
    layout = dk.group(prompt, lengths)  # the library's answer
    P, N, S = prompt, len(lengths), sum(lengths)
    check(
        "ordinary rows of P=%d, R=%s" % (P, lengths),
        replicated_rows(prompt, lengths),
        layout.replicate()[0].rows,
        mistakes=[
            (P + S, "that is the packed batch; here every response brings its own prompt"),
            (N * P, "the responses have rows too"),
            (P + N * max(lengths), "responses are not all as long as the longest"),
        ],
    )
    check(
        "packed rows of P=%d, R=%s" % (P, lengths),
        packed_rows(prompt, lengths),
        layout.rows,
        mistakes=[
            (N * P + S, "that is the ordinary batch; here the prompt is stored once"),
            (P + max(lengths), "there are several responses"),
        ],
    )

# %%
reveal(
    "rows of the ordinary batch, N = 8, P = 1000, R = 100",
    replicated_rows(1000, [100] * 8),
    "8 sequences of 1000 + 100 tokens.",
)
reveal("rows of the packed batch", packed_rows(1000, [100] * 8), "1000 tokens once, and 8 times 100.")
figure, ax = axes(7, 2.6)
draw_batches(ax, 1000, [100] * 8, title="N = 8, P = 1000, R = 100")
show(
    figure,
    "eight sequences with a prompt each, seven of them repeated (grey), above one packed group of 1800 rows",
)

# %% [markdown]
# ## Equal, or nearly equal?
#
# The same attention, once on the packed rows, once on the ordinary batch, in double precision and then in f32. `row_map` says of which packed row each ordinary row is a copy.

# %%
rng = np.random.default_rng(0)
layout = dk.group(100, [20] * 4)
ordinary, row_map = layout.replicate()
q, k, v = (rng.standard_normal((layout.rows, 2, 16)) for _ in range(3))
difference = {}
for dtype, backend in (("f64", "ref"), ("f32", "cpu")):
    packed = dk.attention(q, k, v, layout, backend=backend, dtype=dtype)["o"]
    copies = dk.attention(q[row_map], k[row_map], v[row_map], ordinary, backend=backend, dtype=dtype)["o"]
    difference[dtype] = np.abs(packed[row_map] - copies).max()
print("rows: %d instead of %d" % (layout.rows, ordinary.rows))
print(
    "largest difference in double below 1e-14:",
    bool(difference["f64"] < 1e-14),
    "  in f32 below 1e-6:",
    bool(difference["f32"] < 1e-6),
)

# %% [markdown]
# Equal in exact arithmetic, and up to rounding in a computer. [Lab 04](04_packed_equals_replicated.ipynb) shows why; next is [lab 01](01_count_the_tokens.ipynb).

# %% [wrong] replicated | that is the packed batch
# return prompt + sum(lengths)

# %% [wrong] packed | that is the ordinary batch
# return len(lengths) * prompt + sum(lengths)

# %% [wrong] packed | [4, 0, 6]: 23 is not it
# return prompt + len(lengths) * max(lengths)
