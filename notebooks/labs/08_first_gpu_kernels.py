# %% [markdown]
# # 08 · First GPU kernels
#
# *Lab of [chapter 08](../tutorials/08_first_gpu_kernels.md), 15 minutes. No GPU is needed: this lab counts bytes and operations, and reads what was measured on one ([docs/results](../docs/results.md)).* Three rungs, from a thread a row to tiles in shared memory: what sets their time?
#
# The shape is the one that the chapter's table was measured on: P = 2048, N = 8 responses of R = 512, 8 query heads, D = 128, bf16. The machine has round numbers: 4 TB/s from memory, 60 TFLOP/s of f32 arithmetic.

# %%
predict("ms of a kernel in which each row fetches each of its keys from memory", 11.8)
predict("ms when a fetched key serves 64 rows, if fetching were all", 0.19)
predict("rows that must share a fetch before arithmetic, and not memory, sets the time", 15)

# %%
P, N, R, H, D = 2048, 8, 512, 8, 128
MEMORY, F32 = 4e12, 60e12  # bytes and operations in a second
layout = dk.group(P, [R] * N)
print("%d rows, %d visible pairs a head" % (layout.rows, layout.pairs))

# %% [markdown]
# ## Your turn: bytes, operations, time
#
# Every visible pair needs the key and the value, D numbers of 2 bytes each, for each of the H query heads. When a fetched key serves `rows` query rows, it is fetched that many times less often. And every pair costs 4 D operations: 2 D for the score, 2 D for the output. Fetching and arithmetic go on at the same time.


# %%
def fetched_bytes(pairs, rows):
    # hole fetched: return the bytes of keys and values that are fetched for H heads, a fetched key serving `rows` rows
    return pairs * H * 2 * D * 2 / rows
    # end


def time_ms(fetched, flops):
    # hole time: return the time in ms; fetching (MEMORY bytes a second) and arithmetic (F32 a second) overlap
    return max(fetched / MEMORY, flops / F32) * 1e3
    # end


# %%
one = layout.pairs * H * 4 * D
check(
    "bytes of one row a fetch",
    float(fetched_bytes(layout.pairs, 1) or 0),
    float(one),
    mistakes=[
        (one / 2, "values are fetched, too: two vectors of D for each pair"),
        (one / H, "every query head fetches for itself: H times"),
        (
            one / 4,
            "every query head fetches for itself, also those that share a key head: H times, not Hkv times",
        ),
    ],
)
check(
    "bytes of 64 rows a fetch",
    float(fetched_bytes(layout.pairs, 64)),
    one / 64,
    mistakes=[(lambda got: got >= one, "a key that serves 64 rows is fetched 64 times less often")],
)
for fetched, flops in ((one, 0), (one / 64, one), (0, one)):
    a, b = fetched / MEMORY * 1e3, flops / F32 * 1e3
    check(
        "time of %.3g bytes and %.3g operations" % (fetched, flops),
        float(time_ms(fetched, flops)),
        max(a, b),
        mistakes=[
            (a + b, "they overlap: the slower of the two decides, not their sum"),
            (min(a, b), "the slower of the two decides"),
        ],
    )

# %%
flops = layout.pairs * H * 4 * D
reveal(
    "ms of a kernel in which each row fetches each of its keys from memory",
    time_ms(fetched_bytes(layout.pairs, 1), 0),
    "%.1f GB at 4 TB/s." % (one / 1e9),
    3,
)
reveal(
    "ms when a fetched key serves 64 rows, if fetching were all",
    time_ms(fetched_bytes(layout.pairs, 64), 0),
    "64 times less; counted with what tiles waste on the diagonal, below, it is 0.19. Its arithmetic takes %.2f ms, so"
    " arithmetic is the limit." % time_ms(0, flops),
    2,
)
reveal(
    "rows that must share a fetch before arithmetic, and not memory, sets the time",
    F32 / MEMORY,
    "n rows do about n operations for each byte; the machine does 15 in the time of one byte.",
)

# %% [markdown]
# ## Measured
#
# The rung `naive` goes over the keys three times: twice for scores alone, once for scores and values. So it fetches twice what `warp` does. `shared` fetches for tiles of 64 rows; counted exactly, with the key ranges of each tile:

# %%
exact = (
    sum(
        end - begin
        for i in range(0, layout.rows, 64)
        for begin, end in layout.key_ranges(i, min(i + 64, layout.rows))
    )
    * H
    * 4
    * D
)
fetched = {"naive": 2 * fetched_bytes(layout.pairs, 1), "warp": fetched_bytes(layout.pairs, 1), "shared": exact}
runs = {
    r["kernel"]: r
    for r in gpu_runs("forward", ["naive", "warp", "shared"])
    if (r["shape"], r["heads"], r["d"]) == ((N, P, R), H, D)
}
print("rung      GB fetched   FLOP/byte   bound, ms   measured, ms   measured / bound   useful TFLOP/s")
for name, r in runs.items():
    bound = time_ms(fetched[name], flops)
    print(
        "%-8s %11.2f %11.2f %11.2f %14.2f %18.2f %16.2f"
        % (
            name,
            fetched[name] / 1e9,
            flops / fetched[name],
            bound,
            r["ms"],
            r["ms"] / bound,
            flops / r["ms"] / 1e9,
        )
    )
print(table("first_rungs")[1])

# %% [markdown]
# ## The roofline
#
# Across: useful operations for each byte that the instructions ask for. The slope is memory, the flat top arithmetic. Below the roof: something else takes time. Above it: caches serve what we counted as memory.

# %%
x = np.logspace(-1.5, 3, 100)
figure, ax = axes(6.8, 3.7)
ax.loglog(x, np.minimum(x * MEMORY, F32) / 1e12, color=INK)
ax.text(0.05, 0.36, "4 TB/s", rotation=35, fontsize=8)
ax.text(100, 68, "60 TFLOP/s", fontsize=8)
for (name, r), colour, marker in zip(runs.items(), (COOL[1], COOL[0], COOL[2]), "^os"):
    ax.plot(
        flops / fetched[name],
        flops / r["ms"] / 1e9,
        marker=marker,
        color=colour,
        markersize=9,
        linestyle="none",
        label=name,
    )
ax.set(
    xlabel="useful FLOP for each byte fetched",
    ylabel="useful TFLOP/s",
    title="three rungs and the roof",
    ylim=(0.08, 200),
)
ax.legend(loc="lower right")
show(figure, "roofline: naive far below the slope, warp at it, shared under the flat top")

# %% [markdown]
# Read it honestly. `naive` is far from its bound, for its output is an array in memory, read and written for every key, and its threads hold neighbouring rows, so that every load of q touches 32 cache lines: our count sees neither. `warp` is near the bound of a machine without caches, or above: the 8 warps of a block are neighbouring rows, and find each other's keys in the cache. `shared` has left the slope; no saving of bytes will help it any more. The next rung must multiply faster: [lab 09](09_the_dualkv_kernel.ipynb).
#
# And the point of the project, the same kernels on the ordinary batch:

# %%
for name, r in runs.items():
    if r["replicated_ms"]:
        print(
            "%-8s packed %7.2f ms, replicated %7.2f ms: %.2f times; A = %.2f"
            % (name, r["ms"], r["replicated_ms"], r["replicated_ms"] / r["ms"], dk.saving(layout)["pair_ratio"])
        )

# %% [wrong] fetched | values are fetched, too
# return pairs * H * D * 2 / rows

# %% [wrong] fetched | H times, not Hkv times
# return pairs * 2 * 2 * D * 2 / rows

# %% [wrong] fetched | fetched 64 times less often
# return pairs * H * 2 * D * 2

# %% [wrong] time | the slower of the two decides, not their sum
# return (fetched / MEMORY + flops / F32) * 1e3
