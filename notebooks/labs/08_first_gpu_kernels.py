# %% [markdown]
# # 08 · First GPU kernels
#
# *Lab of chapter 08, 15 minutes. No GPU is needed: this lab counts bytes and operations, and reads what was measured on one ([docs/results](../docs/results.md)).* Three rungs, from a thread a row to tiles in shared memory: what sets their time?
#
# The shape is P = 2048, N = 8 responses of R = 512, H = 8 query heads on 2 key heads, D = 128, bf16. The card is an H200; its data sheet says 4.8 TB/s from memory and 67 TFLOP/s of f32 arithmetic.

# %%
predict("ms of a kernel in which each row fetches each of its keys from memory", 10)
predict("ms when a fetched key serves 64 rows, if fetching were all", 0.16)
predict("what rung 3 (shared) waits for: memory or arithmetic", "arithmetic")

# %%
P, N, R, H, D = 2048, 8, 512, 8, 128
MEMORY, F32 = 4.8e12, 67e12  # bytes/s and FLOP/s, data sheet of the H200
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
check("bytes of one row a fetch", float(fetched_bytes(layout.pairs, 1) or 0), float(one), mistakes=[
    (one / 2, "values are fetched, too: two vectors of D for each pair"), (one / H, "every query head fetches for itself: H times"),
    (one / 4, "every query head fetches for itself, also those that share a key head: H times, not Hkv times")])
check("bytes of 64 rows a fetch", float(fetched_bytes(layout.pairs, 64)), one / 64, mistakes=[(one * 64, "a key that serves 64 rows is fetched 64 times less often"),
                                                                                            (float(one), "a key that serves 64 rows is fetched 64 times less often")])
for fetched, flops in ((one, 0), (one / 64, one), (0, one)):
    a, b = fetched / MEMORY * 1e3, flops / F32 * 1e3
    check("time of %.3g bytes and %.3g operations" % (fetched, flops), float(time_ms(fetched, flops)), max(a, b),
          mistakes=[(a + b, "they overlap: the slower of the two decides, not their sum"), (min(a, b), "the slower of the two decides")])

# %% [markdown]
# ## Reveal
#
# The measured times are those of the committed runs. The rung `naive` goes over the keys three times (scores twice, scores and values once), and keeps its output in memory, where 4-byte sums are read and written for every key.

# %%
runs = {r["kernel"]: r for r in results("gpu_ladder.json")["runs"] if r["direction"] == "fwd" and (r["P"], r["N"], r["R"], r["H"], r["D"]) == (P, N, R, H, D)}
flops = layout.pairs * H * 4 * D
fetched = {"naive": 2 * fetched_bytes(layout.pairs, 1) + layout.pairs * H * 2 * D * 4, "warp": fetched_bytes(layout.pairs, 1), "shared": fetched_bytes(layout.pairs, 64)}
reveal("ms of a kernel in which each row fetches each of its keys from memory", time_ms(fetched["warp"], 0), "%.1f GB at 4.8 TB/s." % (fetched["warp"] / 1e9), 3)
reveal("ms when a fetched key serves 64 rows, if fetching were all", time_ms(fetched["shared"], 0), "64 times less.", 3)
reveal("what rung 3 (shared) waits for: memory or arithmetic", "memory" if fetched["shared"] / MEMORY > flops / F32 else "arithmetic",
       "its arithmetic takes %.2f ms at the card's f32 rate." % time_ms(0, flops))
print()
print("rung      GB fetched   FLOP/byte   bound, ms   measured, ms   useful TFLOP/s")
for name in ("naive", "warp", "shared"):
    bound = time_ms(fetched[name], flops)
    print("%-8s %10.1f %11.2f %11.2f %14.2f %16.1f" % (name, fetched[name] / 1e9, flops / fetched[name], bound, runs[name]["packed_ms"], flops / runs[name]["packed_ms"] / 1e9))
source = results("gpu_ladder.json")
print("measured on %s, %s, docs/results/gpu_ladder.json" % (source["device"], source["date"]))

# %% [markdown]
# ## The roofline
#
# Across: useful operations for each byte that the instructions ask for. The slope is memory, the flat top f32 arithmetic. A kernel can stand below the roof, not above, unless caches serve what we counted as memory.

# %%
x = np.logspace(-1.5, 3, 100)
figure, ax = axes(6.8, 3.7)
ax.loglog(x, np.minimum(x * MEMORY, F32) / 1e12, color=INK)
ax.text(0.05, 0.42, "4.8 TB/s", rotation=35, fontsize=8)
ax.text(100, 75, "67 TFLOP/s of f32", fontsize=8)
for (name, colour), marker in zip((("naive", COOL[1]), ("warp", COOL[0]), ("shared", COOL[2])), "^os"):
    ax.plot(flops / fetched[name], flops / runs[name]["packed_ms"] / 1e9, marker=marker, color=colour, markersize=9, linestyle="none", label=name)
ax.set(xlabel="useful FLOP for each byte fetched", ylabel="useful TFLOP/s", title="three rungs under the roof, H200", ylim=(0.08, 200))
ax.legend(loc="lower right")
show(figure, "roofline of the H200: naive far below the slope, warp just below it, shared under the flat top")

# %% [markdown]
# Read it honestly: we counted what the instructions ask for, as if all of it came from memory. `naive` lies five times below that bound, for its threads hold neighbouring rows, so every load of q touches 32 cache lines, and our count does not see q at all. `warp` meets its bound almost exactly, which is partly luck: most of its keys come from caches, and other costs (five shuffles for each score) fill the time. `shared` has left the slope: it reaches a third of f32 arithmetic, and no saving of bytes will help it. The next rung must multiply faster: [lab 09](09_the_dualkv_kernel.ipynb).
#
# And the point of the whole project, the same kernels on the ordinary batch:

# %%
for name in ("naive", "warp", "shared"):
    r = runs[name]
    print("%-8s packed %7.2f ms, replicated %7.2f ms: %.2f times; A = %.2f" % (name, r["packed_ms"], r["replicated_ms"], r["replicated_ms"] / r["packed_ms"], dk.saving(layout)["pair_ratio"]))

# %% [wrong] fetched | values are fetched, too
# return pairs * H * D * 2 / rows

# %% [wrong] fetched | H times, not Hkv times
# return pairs * 2 * 2 * D * 2 / rows

# %% [wrong] time | the slower of the two decides, not their sum
# return (fetched / MEMORY + flops / F32) * 1e3
