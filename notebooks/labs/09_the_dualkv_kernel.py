# %% [markdown]
# # 09 · The DualKV kernel
#
# *Lab of [chapter 09](../tutorials/09_the_dualkv_kernel.md), 15 minutes. No GPU is needed: this lab counts, and reads what was measured on one ([docs/results](../docs/results.md)).* Two key ranges for each tile of rows; the traffic with and without a shared prompt; and the ladder from 0.2 to 700 TFLOP/s.

# %%
predict("key ranges that a tile of rows of response b needs", 2)
predict("P = 8192, 32 x 1024: times fewer keys and values stored", 7.2)
predict("and times fewer of them loaded, by tiles of 128 rows", 4.3)

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
def as_text(ranges):
    """Lists, tuples and NumPy's integers read alike."""
    return None if ranges is None else str([tuple(map(int, one)) for one in ranges])


for prompt, lengths, tile in ((3, [2, 2], 2), (3, [2, 2], 1), (40, [10] * 4, 8), (10, [3, 7, 5], 4)):
    layout = dk.group(prompt, lengths)
    for i0 in range(0, layout.rows, tile):
        i1 = min(i0 + tile, layout.rows)
        got, want = as_text(key_ranges(prompt, lengths, i0, i1)), as_text(layout.key_ranges(i0, i1))
        start = int(layout.start[layout.segment[i0]])
        check(
            "rows %d to %d of P=%d, R=%s" % (i0, i1 - 1, prompt, lengths),
            got,
            want,
            mistakes=[
                (
                    lambda got: got == str([(0, i1)]) and i0 >= prompt,
                    "keys of siblings are loaded: one range from 0 would cover every response before",
                ),
                (
                    lambda got: got == str([(0, prompt), (i0, i1)]) and i0 > start,
                    "rows of the own response that lie before the tile are seen, too",
                ),
                (lambda got: got == str([(start, i1)]), "the prompt is missing"),
                (
                    lambda got: got == str([(0, prompt), (prompt, i1)]),
                    "ranges that touch are one: a kernel would start a second loop for nothing",
                ),
            ],
        )

# %%
layout = dk.group(40, [10] * 4)
figure, ax = axes(7.0, 3.1)
for n, i0 in enumerate(range(0, layout.rows, 8)):
    i1 = min(i0 + 8, layout.rows)
    for begin, end in key_ranges(40, [10] * 4, i0, i1):
        ax.barh(n, np.ones(end - begin), left=np.arange(begin, end), height=0.8, color=colours(layout)[begin:end])
    ax.plot([i0, i1], [n + 0.46] * 2, color=INK, linewidth=2)
ax.set(
    yticks=range(10),
    yticklabels=["%d to %d" % (i0, min(i0 + 8, layout.rows) - 1) for i0 in range(0, layout.rows, 8)],
    xlabel="key rows that are loaded",
    ylabel="query rows of a tile",
    title="P = 40, 4 responses of 10, tiles of 8 rows (black: where the tile itself lies)",
)
ax.invert_yaxis()
ax.tick_params(labelsize=7)
show(
    figure,
    "for each tile of rows the keys it loads: the blue prompt, then a gap over the siblings, then its own warm"
    " range",
)

# %% [markdown]
# ## Traffic with and without sharing
#
# Stored: K and V of every row. Loaded: each tile of 128 rows loads the keys and values of its ranges, for each of H = 32 heads. D = 128, bf16.

# %%
P, N, R, H, Hkv, D = 8192, 32, 1024, 32, 8, 128
packed = dk.group(P, [R] * N)
ordinary = packed.replicate()[0]


def loaded_gb(layout):
    keys = sum(
        end - begin
        for i in range(0, layout.rows, 128)
        for begin, end in layout.key_ranges(i, min(i + 128, layout.rows))
    )
    return keys * H * 2 * D * 2 / 1e9


stored = [layout.rows * Hkv * 2 * D * 2 / 1e9 for layout in (packed, ordinary)]
loaded = [loaded_gb(layout) for layout in (packed, ordinary)]
reveal(
    "key ranges that a tile of rows of response b needs",
    len(packed.key_ranges(P + R, P + R + 128)),
    "the prompt, and its own response up to itself.",
)
reveal(
    "P = 8192, 32 x 1024: times fewer keys and values stored",
    stored[1] / stored[0],
    "rho: %.2f GB instead of %.2f GB a layer." % tuple(stored),
    3,
)
reveal(
    "and times fewer of them loaded, by tiles of 128 rows",
    loaded[1] / loaded[0],
    "A = %.2f and a little for the diagonal: %.1f GB instead of %.0f GB a layer, most of it from the L2 cache."
    % (dk.saving(packed)["pair_ratio"], *loaded),
    3,
)

# %% [markdown]
# That is why sharing helps twice: fewer loads, and a working set that fits better into the cache. Does time follow? The committed runs in which one kernel was timed on both layouts:

# %%
order = ["naive", "warp", "shared", "mma", "pipeline", "wgmma", "hopper"]
ladder = {r["kernel"]: r for r in gpu_runs("forward", order)}
rows, origin = table("packed_and_replicated")
timed = {
    (r["direction"] + " " + r["kernel"], r["N, P, R"]): (float(r["A"]), float(r["ratio"]))
    for r in rows
    if r["ratio"] not in ("", "-")
}
for name, r in ladder.items():
    if r["replicated_ms"]:
        n, p, length = r["shape"]
        timed["forward " + name, "%d, %d, %d" % r["shape"]] = (
            dk.saving(dk.group(p, [length] * n))["pair_ratio"],
            r["replicated_ms"] / r["ms"],
        )
figure, ax = axes(5.8, 3.9)
top = 1.15 * max(max(point) for point in timed.values())
ax.plot([1, top], [1, top], color=GHOST)
for n, kernel in enumerate(dict.fromkeys(k for k, _ in timed)):
    ax.plot(
        *zip(*[point for (k, _), point in timed.items() if k == kernel]),
        marker="os^Dvp*h"[n % 8],
        linestyle="none",
        color=COOL[n % 6],
        label=kernel
    )
ax.set(
    xlabel="A, predicted from pairs",
    ylabel="replicated ms / packed ms, measured",
    title="the same kernel on both layouts",
)
ax.legend(fontsize=8)
show(figure, "measured ratios lie near the diagonal, most of them a little above A")
print(
    "\n".join(
        "%-17s %-16s A = %.2f, measured %.2f" % (*key, *timed[key])
        for key in sorted(timed, key=lambda key: (key[0], timed[key]))
    )
)
print(origin)

# %% [markdown]
# ## The ladder
#
# Useful TFLOP/s = 4 D H pairs / time, of the packed layout. Each rung on the largest shape that it was measured on, bf16 and D = 128 unless its name says otherwise; the dashed line is a large matrix product on such a card.

# %%
product = results("gpu_final.json").get("cublas_8192_bf16_tflops")
usual = lambda r: (r["dtype"], r["d"]) == ("bf16", 128)
figure, ax = axes(6.8, 3.5)
names = [name if usual(r) else "%s\n%s, %d" % (name, r["dtype"], r["d"]) for name, r in ladder.items()]
ax.bar(
    names,
    [r["tflops"] for r in ladder.values()],
    color=[
        COOL[0] if name in ("naive", "warp", "shared") else COOL[1] if name in ("mma", "pipeline") else COOL[2]
        for name in ladder
    ],
)
for n, r in enumerate(ladder.values()):
    high = r["tflops"] > 1
    ax.text(
        n,
        r["tflops"] * (0.85 if high else 1.1),
        "%.3g" % r["tflops"],
        ha="center",
        va="top" if high else "bottom",
        fontsize=9,
        color="white" if high else INK,
    )
if product:
    ax.axhline(product, color=INK, linestyle="--", linewidth=1)
    ax.text(-0.4, product * 1.1, "matrix product, %.0f" % product, fontsize=8)
ax.set(
    yscale="log",
    ylim=(0.1, 2500),
    ylabel="useful TFLOP/s",
    title="forward rungs, %s" % next(iter(ladder.values()))["device"].split(",")[0],
)
show(
    figure,
    "the rungs on a logarithmic axis, from naive to hopper; blue f32 arithmetic, orange tensor cores, green"
    " Hopper's copy and product engines",
)
for name, r in ladder.items():
    print(
        "%-9s N, P, R = %-16s %s, D = %-3d %8.2f ms, %5.3g TFLOP/s   (%s)"
        % (name, "%d, %d, %d" % r["shape"], r["dtype"], r["d"], r["ms"], r["tflops"], r["file"].split("/")[-1])
    )

# %% [markdown]
# Three jumps. From `naive` to `shared` bytes are saved (lab 08). With `mma` the tensor cores do the products. From there on waiting is removed: copies run during products (`pipeline`; it gains nothing over `mma`, where a second block on the multiprocessor hides the copies already); Hopper's engines copy whole tiles and multiply them where they land (`wgmma`); and one group of warps is in its softmax while another multiplies (`hopper`).

# %% [wrong] ranges | keys of siblings are loaded
# return [(0, i1)]

# %% [wrong] ranges | rows of the own response that lie before the tile
# return [(0, i1)] if start == prompt else [(0, prompt), (i0, i1)]

# %% [wrong] ranges | ranges that touch are one
# return [(0, prompt), (start, i1)]

# %% [wrong] ranges | the prompt is missing
# return [(0, i1)] if start == prompt else [(start, i1)]
