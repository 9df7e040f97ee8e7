# %% [markdown]
# # 09 · The DualKV kernel
#
# *Lab of chapter 09, 15 minutes. No GPU is needed: this lab counts, and reads what was measured on one ([docs/results](../docs/results.md)).* Two key ranges for each tile of rows; the traffic with and without a shared prompt; and the ladder from 0.2 to 700 TFLOP/s.

# %%
predict("key ranges that a tile of rows of response b needs", 2)
predict("P = 16384, 28 x 2048: times less keys and values stored", 7.0)
predict("and times less of them loaded", 4.2)

# %% [markdown]
# ## Your turn: two key ranges
#
# A kernel takes query rows `i0 .. i1 - 1` of a packed group. Which keys must it load? If the first row belongs to the prompt, everything from 0 to i1. If it belongs to a response that starts at row s, the prompt `(0, P)`, and the rows from s to i1 (a tile may straddle several responses). Two ranges that touch are one.

# %%
def key_ranges(prompt, lengths, i0, i1):
    start = prompt
    for length in lengths:
        if i0 < start + length:
            break
        start += length
    if i0 < prompt:
        return [(0, i1)]
    # hole ranges: return the list of one or two ranges (begin, end) for rows of a response that starts at row `start`
    return [(0, i1)] if start == prompt else [(0, prompt), (start, i1)]
    # end

# %%
for prompt, lengths, tile in ((3, [2, 2], 2), (3, [2, 2], 1), (40, [10] * 4, 8), (10, [3, 7, 5], 4)):
    layout = dk.group(prompt, lengths)
    for i0 in range(0, layout.rows, tile):
        i1 = min(i0 + tile, layout.rows)
        got, want = key_ranges(prompt, lengths, i0, i1), layout.key_ranges(i0, i1)
        start = int(layout.start[layout.segment[i0]])
        check("rows %d to %d of P=%d, R=%s" % (i0, i1 - 1, prompt, lengths), str(got), str(want), mistakes=[
            (lambda got: got == str([(0, i1)]) and i0 >= prompt, "keys of siblings are loaded: one range from 0 would cover every response before"),
            (lambda got: got == str([(0, prompt), (i0, i1)]) and i0 > start, "rows of the own response that lie before the tile are seen, too"),
            (lambda got: got == str([(start, i1)]), "the prompt is missing"),
            (lambda got: got == str([(0, prompt), (prompt, i1)]), "ranges that touch are one: a kernel would start a second loop for nothing")])

# %%
layout = dk.group(40, [10] * 4)
figure, ax = axes(7.0, 3.1)
for n, i0 in enumerate(range(0, layout.rows, 8)):
    i1 = min(i0 + 8, layout.rows)
    for begin, end in key_ranges(40, [10] * 4, i0, i1):
        ax.barh(n, np.ones(end - begin), left=np.arange(begin, end), height=0.8, color=colours(layout)[begin:end])
    ax.plot([i0, i1], [n + 0.46] * 2, color=INK, linewidth=2)
ax.set(yticks=range(10), yticklabels=["%d to %d" % (i0, min(i0 + 8, layout.rows) - 1) for i0 in range(0, layout.rows, 8)], xlabel="key rows that are loaded",
       ylabel="query rows of a tile", title="P = 40, 4 responses of 10, tiles of 8 rows (black: where the tile itself lies)")
ax.invert_yaxis()
ax.tick_params(labelsize=7)
show(figure, "for each tile of rows the keys it loads: the blue prompt, then a gap over the siblings, then its own warm range")

# %% [markdown]
# ## Traffic with and without sharing
#
# Stored: K and V of every row. Loaded: for each tile of 128 rows and each of its key tiles, 128 keys and values, for H = 32 heads. D = 128, bf16.

# %%
P, N, R, H, Hkv, D = 16384, 28, 2048, 32, 8, 128
packed = dk.group(P, [R] * N)
ordinary = packed.replicate()[0]


def loaded_gb(layout):
    tiles = layout.tile_counts(128, 128)
    return (tiles["full"] + tiles["partial"]) * 128 * 2 * D * 2 * H / 1e9


stored = [layout.rows * Hkv * 2 * D * 2 / 1e9 for layout in (packed, ordinary)]
loaded = [loaded_gb(layout) for layout in (packed, ordinary)]
reveal("key ranges that a tile of rows of response b needs", len(packed.key_ranges(P + 3 * R + 128, P + 3 * R + 256)), "the prompt, and its own response up to itself.")
reveal("P = 16384, 28 x 2048: times less keys and values stored", stored[1] / stored[0], "rho: %.2f GB instead of %.2f GB a layer." % tuple(stored), 3)
reveal("and times less of them loaded", loaded[1] / loaded[0], "A: %.0f GB instead of %.0f GB a layer, most of it from the L2 cache." % tuple(loaded), 3)

# %% [markdown]
# That is why sharing helps twice: fewer loads, and a working set that fits better into the cache. Does time follow? Every committed GPU run in which a kernel was timed on both layouts:

# %%
timed = {}
for r in gpu_records():
    if r["replicated_ms"] and r["direction"] == "forward":
        n, p, length = r["shape"]
        timed[r["kernel"], r["shape"], r["d"]] = (dk.saving(dk.group(p, [length] * n))["pair_ratio"], r["replicated_ms"] / r["ms"], r["kernel"])
try:
    for r in results("gpu_final.json")["packed_and_replicated"]:
        if r["direction"] == "fwd":
            timed[r["kernel"], (r["N"], r["P"], r["R"]), 128] = (r["A"], r["replicated_ms"] / r["packed_ms"], r["kernel"])
except (KeyError, FileNotFoundError):
    pass
figure, ax = axes(5.6, 3.8)
top = 1.15 * max(max(a, b) for a, b, _ in timed.values())
ax.plot([1, top], [1, top], color=GHOST)
for n, kernel in enumerate(dict.fromkeys(k for _, _, k in timed.values())):
    points = [(a, b) for a, b, k in timed.values() if k == kernel]
    ax.plot(*zip(*points), marker="os^Dvp*"[n % 7], linestyle="none", color=COOL[n % 6], label=kernel)
ax.set(xlabel="A, predicted from pairs", ylabel="replicated ms / packed ms, measured", title="forward, same kernel on both layouts, %s" % gpu_records()[0]["device"])
ax.legend(fontsize=8)
show(figure, "measured ratios lie near the diagonal, most of them a little above A")
print("\n".join("%-9s A = %.2f, measured %.2f" % (k, a, b) for a, b, k in sorted(timed.values())))

# %% [markdown]
# ## The ladder
#
# Useful TFLOP/s = 4 D H pairs / time, of the packed layout. Each rung on the largest shape that it was measured on, bf16 and D = 128 unless its name says otherwise; the dashed line is a large matrix product on the same card.

# %%
order = ["naive", "warp", "shared", "mma", "pipeline", "wgmma", "hopper"]
best = {}
for r in gpu_records():
    if r["direction"] == "forward" and r["kernel"] in order:
        n, p, length = r["shape"]
        rank = (r["dtype"] == "bf16" and r["d"] == 128, r["d"], dk.group(p, [length] * n).pairs)  # bf16 and D = 128 where there is one
        if r["kernel"] not in best or rank > best[r["kernel"]][0]:
            best[r["kernel"]] = (rank, r)
product = results("gpu_final.json").get("cublas_8192_bf16_tflops")
rungs = [name for name in order if name in best]
figure, ax = axes(6.8, 3.5)
rate = [best[name][1]["tflops"] for name in rungs]
names = [name if best[name][0][0] else "%s\n%s, %d" % (name, best[name][1]["dtype"], best[name][1]["d"]) for name in rungs]
ax.bar(names, rate, color=[COOL[0] if name in ("naive", "warp", "shared") else COOL[1] if name in ("mma", "pipeline") else COOL[2] for name in rungs])
for n, y in enumerate(rate):
    ax.text(n, y * 0.85, "%.3g" % y, ha="center", va="top", fontsize=9, color="white", weight="bold") if y > 1 else ax.text(n, y * 1.1, "%.2g" % y, ha="center", fontsize=9)
if product:
    ax.axhline(product, color=INK, linestyle="--", linewidth=1)
    ax.text(-0.4, product * 1.1, "matrix product, %.0f" % product, fontsize=8)
ax.set(yscale="log", ylim=(0.1, 2500), ylabel="useful TFLOP/s", title="forward rungs, %s" % gpu_records()[0]["device"])
show(figure, "the rungs on a logarithmic axis, from naive to hopper; blue f32 arithmetic, orange tensor cores, green Hopper's copy and product engines")
for name in rungs:
    r = best[name][1]
    n, p, length = r["shape"]
    print("%-9s P=%d, %d x %d, %s, D=%d: %.2f ms, %.3g TFLOP/s%s" % (name, p, n, length, r["dtype"], r["d"], r["ms"], r["tflops"], ", %.0f %% of the product" % (100 * r["tflops"] / product) if product else ""))

# %% [markdown]
# Three jumps. From `naive` to `shared` bytes are saved (lab 08). With `mma` the tensor cores do the products. From there on nothing is computed faster; waiting is removed: copies run during products (`pipeline`), a copy engine fills whole tiles (`wgmma`), and one group of warps is in its softmax while another multiplies (`hopper`).

# %% [wrong] ranges | keys of siblings are loaded
# return [(0, i1)]

# %% [wrong] ranges | rows of the own response that lie before the tile
# return [(0, i1)] if start == prompt else [(0, prompt), (i0, i1)]

# %% [wrong] ranges | ranges that touch are one
# return [(0, prompt), (start, i1)]

# %% [wrong] ranges | the prompt is missing
# return [(0, i1)] if start == prompt else [(start, i1)]
