# %% [markdown]
# # 10 · Backward on the GPU
#
# *Lab of chapter 10, 15 minutes. No GPU is needed: this lab plays what thousands of threads do to one sum, and reads what was measured on a card ([docs/results](../docs/results.md)).* Many tiles add to one gradient: how, in what order, and what does a fixed order cost?

# %%
predict("different sums of the same 64 f32 numbers in 500 random orders (1, some, or 500)", "some")
predict("additions to one dq of row 16384, from key tiles of 128", 129)
predict("extra time of a fixed order, Hopper backward, in percent", 7)

# %% [markdown]
# ## A race
#
# Two threads add 1 to a number. Each reads, adds, writes. Without an atomic addition one may read before the other has written, and a contribution is lost. Here 100 threads do their reads and writes in a random order.

# %%
def race(threads, seed):
    rng, total, read = np.random.default_rng(seed), 0, {}
    steps = rng.permutation(np.repeat(np.arange(threads), 2))  # each thread twice: it reads, then it writes
    for t in steps:
        if t not in read:
            read[t] = total
        else:
            total = read[t] + 1
    return total


print("100 additions of 1, ten times:", [race(100, seed) for seed in range(10)])

# %% [markdown]
# An atomic addition mends that: nothing is lost. But the *order* is whoever comes first, and f32 addition is not associative.

# %%
rng = np.random.default_rng(0)
parts = rng.standard_normal(64).astype(np.float32)


def add_up(numbers):
    """A running sum in f32."""
    total = np.float32(0)
    for x in numbers:
        total = np.float32(total + x)
    return total


sums = {float(add_up(parts[rng.permutation(64)])) for _ in range(500)}
exact = float(parts.astype(np.float64).sum())
print("%d different results, the worst %.1e from the exact sum, %.4f" % (len(sums), max(abs(s - exact) for s in sums), exact))
assert max(abs(s - exact) for s in sums) < 1e-5
reveal("different sums of the same 64 f32 numbers in 500 random orders (1, some, or 500)", "some" if 1 < len(sums) < 500 else str(len(sums)),
       "each is right to rounding, but which one you get changes from run to run.")

# %% [markdown]
# ## Your turn: the same bits, whoever comes first
#
# Parts arrive as pairs (number of the tile, value) in any order. Return an f32 sum whose bits do not depend on the order of arrival. Keep it in f32: sums in double are not what a GPU has time for, and they would only hide the question.

# %%
def ordered_sum(arrivals):
    # hole ordered: return the f32 sum of the values, the same bits for every order of arrival; add_up may help
    return add_up(value for tile, value in sorted(arrivals))
    # end

# %%
want = float(add_up(parts))
results_of_orders = []
for seed in range(50):
    order = np.random.default_rng(seed).permutation(64)
    results_of_orders.append(ordered_sum([(int(t), parts[t]) for t in order]))
if results_of_orders[0] is not None and any(np.asarray(x).dtype != np.float32 for x in results_of_orders):
    results_of_orders = ["not f32"]
check("50 orders of arrival give", "nothing" if results_of_orders[0] is None else "not f32" if results_of_orders == ["not f32"] else "%d results" % len(set(map(float, results_of_orders))), "1 results", mistakes=[
    ("not f32", "the sum must be kept in f32, as a kernel keeps it"), (lambda got: got.endswith("results"), "the bits still depend on who came first: put the parts in an order of their own before adding")])
check("the result is the sum", float(results_of_orders[0]), exact, tolerance=1e-5)

# %% [markdown]
# ## How often does it happen?
#
# The fast backward kernels keep a tile of 128 keys (dk and dv stay in registers, summed over the prompt, all responses and all heads) and let queries pass by. So each *query* row's dq is added to by every key tile that it sees.

# %%
layout = dk.group(16384, [2048] * 28)
tiles_seen = lambda i: sum(-(-end // 128) - begin // 128 for begin, end in layout.key_ranges(int(i), int(i) + 1))
seen = [tiles_seen(i) for i in (0, 16383, 16384, layout.rows - 1)]
reveal("additions to one dq of row 16384, from key tiles of 128", seen[2], "row 16384 is the first of the first response: 128 prompt tiles and its own.")
print("tiles seen by row 0, by the last prompt row, by the first and the last response row:", seen)
figure, ax = axes(6.6, 2.6)
rows = np.arange(0, layout.rows, 128)
ax.bar(rows, [tiles_seen(i) for i in rows], width=128, align="edge", color=colours(layout)[::128])
ax.set(xlabel="query row", ylabel="additions to its dq", title="P = 16384, 28 x 2048, key tiles of 128")
show(figure, "additions to dq rise along the prompt to 128, then go from 129 to 144 within each response")

# %% [markdown]
# ## Which kernel repeats its bits?
#
# The register of kernels says it for each one; `DKV_ON_REQUEST` means that an ordered mode exists.

# %%
import os, re
from lab import ROOT
with open(os.path.join(ROOT, "common", "kernels.def"), encoding="utf-8") as file:
    registered = re.findall(r'DKV_KERNEL\(gpu, bwd, (\w+), "[^"]*", (\w+),', file.read())
for name, order in registered:
    print("%-8s %s" % (name, {"DKV_ALWAYS": "always: each output has one owner that adds in one order", "DKV_NEVER": "never: atomics, whoever comes first",
                              "DKV_ON_REQUEST": "on request: atomics, or each addition waits for its turn"}[order]))

# %% [markdown]
# One owner for each output costs arithmetic instead: dq by rows and dk, dv by columns means that scores and their gradients are computed twice, seven products where five would do. Waiting for a turn costs time only when somebody really waits. Measured, the default beside the ordered mode:

# %%
pairs_of = {}
for r in gpu_records():
    if r["direction"] == "backward" and r["kernel"].startswith("hopper") and r["d"] == 128 and r["dtype"] == "bf16":
        mode = "ordered" if "deterministic" in r["kernel"] else "default" if r["kernel"] == "hopper" else None
        if mode:
            pairs_of.setdefault(r["shape"], {})[mode] = r["ms"]
both = {shape: ms for shape, ms in pairs_of.items() if len(ms) == 2}
extra = {shape: 100 * (ms["ordered"] / ms["default"] - 1) for shape, ms in both.items()}
large = max(both, key=lambda s: dk.group(s[1], [s[2]] * s[0]).pairs)
reveal("extra time of a fixed order, Hopper backward, in percent", extra[large], "for %d responses of %d to a prompt of %d; small problems pay more." % (large[0], large[2], large[1]), 2)
figure, ax = axes(6.6, 3.0)
names = ["%d, %d, %d" % s for s in both]
at = np.arange(len(both))
rate = lambda shape, mode: 10 * 128 * 32 * dk.group(shape[1], [shape[2]] * shape[0]).pairs / both[shape][mode] / 1e9
ax.bar(at - 0.2, [rate(s, "default") for s in both], 0.4, color=COOL[0], label="default (atomics)")
ax.bar(at + 0.2, [rate(s, "ordered") for s in both], 0.4, color=COOL[1], hatch="//", edgecolor="white", label="ordered: same bits every run")
for n, s in enumerate(both):
    ax.text(n, rate(s, "default") + 10, "%+.0f %% ms" % extra[s], ha="center", fontsize=8)
ax.set(xticks=at, xticklabels=names, xlabel="N, P, R", ylabel="useful TFLOP/s", ylim=(0, 800), title="Hopper backward, bf16, D = 128, H = 32/8, %s" % next(r["device"] for r in gpu_records()))
ax.tick_params(axis="x", labelsize=8)
ax.legend(fontsize=8, loc="upper left", ncol=2)
show(figure, "useful TFLOP/s of the default and the ordered mode side by side for each measured shape; the ordered one takes a few percent longer")

# %% [wrong] ordered | the bits still depend on who came first
# return add_up(value for tile, value in arrivals)

# %% [wrong] ordered | the sum must be kept in f32
# return sum(float(value) for tile, value in sorted(arrivals))

# %% [wrong] ordered | the result is the sum
# return np.float32(np.mean([value for tile, value in sorted(arrivals)]))
