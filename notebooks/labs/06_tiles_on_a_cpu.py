# %% [markdown]
# # 06 · Tiles on a CPU
#
# *Lab of [chapter 06](../tutorials/06_tiles_on_a_cpu.md), 15 minutes, no GPU.* Cut a mask into tiles that are empty, full or partial, and count what a kernel loads before anybody writes it.

# %%
predict("P = 4096, 16 x 512, tiles of 128: one computed tile in how many needs the mask", 30)
predict("how many times fewer bytes of keys and values packed loads, A being 3.86", 3.9)

# %% [markdown]
# ## Your turn: the class of a tile
#
# Query rows `i0 .. i1 - 1` against key rows `j0 .. j1 - 1`. The rows of the tile that see key j are one run, from `max(j, i0)` to `min(end[j], i1)`. One step for each key, none for each pair.


# %%
def tile_class(end, i0, i1, j0, j1):
    some, every = False, True
    for j in range(j0, j1):
        # hole run: set first and last, so that rows first .. last - 1 of the tile see key j
        first, last = max(j, i0), min(end[j], i1)
        # end
        some = some or first < last
        every = every and first == i0 and last == i1
    return "full" if every else "partial" if some else "empty"


# %%
rng = np.random.default_rng(6)
layouts = [
    seven(),
    dk.group(24, [8] * 3),
    dk.groups((5, [3, 0, 7]), (2, [6])),
    dk.Layout([-1, 0, 1, 1, 0], [3, 2, 2, 1, 4]),
]
layouts += [dk.group(int(rng.integers(0, 12)), rng.integers(0, 9, 4).tolist()) for _ in range(6)]
for layout in layouts:
    for tile in (2, 3, 4):
        mine, theirs, causal = [], [], []
        for i in range(0, layout.rows, tile):
            for j in range(0, layout.rows, tile):
                box = (i, min(i + tile, layout.rows), j, min(j + tile, layout.rows))
                mine.append(tile_class(layout.end, *box))
                theirs.append(layout.tile_class(*box))
                causal.append("empty" if box[2] >= box[1] else "full" if box[3] - 1 <= box[0] else "partial")
        check(
            "%r in tiles of %d" % (layout, tile),
            np.array(mine),
            np.array(theirs),
            mistakes=[
                (
                    np.array(causal),
                    (
                        "that is plain causality: a run ends at end[j], where the key's segment and its"
                        " descendants end"
                    ),
                ),
                (
                    lambda got: any(a == "empty" and b != "empty" for a, b in zip(got, theirs)),
                    "a tile with visible pairs is called empty: it would be skipped",
                ),
            ],
        )

# %% [markdown]
# ## See it
#
# Full tiles are solid, partial ones striped, empty ones never touched. Left the seven tokens in tiles of 2; right a prompt of 24 with three responses of 8 in tiles of 4.

# %%
figure, axs = axes(7.6, 3.9, 2)
draw_tiles(axs[0], seven(), 2, "seven tokens, tiles of 2 x 2")
draw_tiles(axs[1], dk.group(24, [8] * 3), 4, "P = 24, 3 x 8, tiles of 4 x 4")
show(
    figure,
    "tile maps: a full blue column for the prompt with a striped diagonal, and a triangle for each response"
    " alone",
)
print("seven tokens:", {name: n for name, n in seven().tile_counts(2, 2).items()})

# %% [markdown]
# ## In earnest
#
# The walk of the tiled kernel, counted instead of computed (`dkv_count_tiled`), for Qwen3-8B's heads. `reads` says how many query tiles load each key tile of 128 rows.

# %%
packed = dk.group(4096, [512] * 16)
ordinary = packed.replicate()[0]
tiles = packed.tile_counts(128, 128)
reveal(
    "P = 4096, 16 x 512, tiles of 128: one computed tile in how many needs the mask",
    (tiles["full"] + tiles["partial"]) / tiles["partial"],
    "%d full and %d partial: only the diagonal needs it, the whole prompt below is full."
    % (tiles["full"], tiles["partial"]),
    3,
)
a, b = dk.count(packed), dk.count(ordinary)
reveal(
    "how many times fewer bytes of keys and values packed loads, A being 3.86",
    b["key_bytes"] / a["key_bytes"],
    "%.1f GB instead of %.1f GB forward: loads follow pairs, so the ratio is A up to the tiles on the edge."
    % (a["key_bytes"] / 1e9, b["key_bytes"] / 1e9),
    3,
)
print(
    "a key is loaded %.0f times less often than by a kernel that loads one for every pair"
    % (a["useful_pairs"] * 2 * 128 * 2 / a["key_bytes"])
)

# %%
figure, ax = axes(7.2, 2.9)
rows = 128 * np.arange(len(a["reads"]))
ax.bar(rows, a["reads"], width=120, align="edge", color=colours(packed)[::128])
ax.set(
    xlabel="key tile, first row",
    ylabel="times loaded (one key head)",
    title="packed: the prompt's tiles are loaded by all responses, a response's by itself",
)
show(figure, "bars of loads for each key tile: high for the prompt's 32 tiles, low for those of the responses")

# %% [markdown]
# ## Which tiles fit short responses?
#
# 64 responses of 20 tokens: the larger the tile, the more pairs are computed and thrown away, for it straddles several responses.

# %%
short, long = dk.group(100, [20] * 64), dk.group(4096, [512] * 16)
sizes = [8, 16, 32, 64, 128, 256]
share = {
    name: [layout.tile_counts(t, t)["useful_pairs"] / layout.tile_counts(t, t)["issued_pairs"] for t in sizes]
    for name, layout in (("64 x 20 on P = 100", short), ("16 x 512 on P = 4096", long))
}
figure, ax = axes(6.2, 3.0)
for (name, y), colour, marker in zip(share.items(), COOL, "os"):
    ax.plot(sizes, 100 * np.array(y), marker=marker, color=colour, label=name)
ax.set(
    xscale="log",
    xticks=sizes,
    xticklabels=[str(t) for t in sizes],
    xlabel="rows and keys of a tile",
    ylabel="useful pairs, %",
    ylim=(0, 105),
    title="what is not thrown away",
)
ax.minorticks_off()
ax.legend(loc="lower left")
show(figure, "the useful share falls with the tile size, steeply for short responses and hardly for long ones")
print(
    "tiles of 64: %.1f %% useful for short responses, %.1f %% for long ones"
    % (100 * share["64 x 20 on P = 100"][3], 100 * share["16 x 512 on P = 4096"][3])
)

# %% [wrong] run | that is plain causality
# first, last = max(j, i0), i1

# %% [wrong] run | a tile with visible pairs is called empty
# first, last = max(j, i0), min(end[j], i1) - 1

# %% [wrong] run | the first difference is at
# first, last = i0, min(end[j], i1)
