# %% [markdown]
# # 10 · Backward on the GPU
#
# *Lab of [chapter 10](../tutorials/10_backward_on_the_gpu.md), 15 minutes. No GPU is needed: this lab plays what thousands of threads do to one sum, and reads what was measured on a card ([docs/results](../docs/results.md)).* Many tiles add to one gradient: how, in what order, and what does a fixed order cost?

# %%
predict("parts of dq of row 6 of the seven tokens, from key tiles of two", 4)
predict("0, 4, -80, 96 added from the last to the first in a format of 4 bits; the exact sum is 20", 20)
predict("extra time of equal bits, largest problem, in percent", 7)

# %% [markdown]
# ## Four parts of one gradient
#
# A block of threads keeps a tile of keys and hands out its part of dq to every row that sees it. Chapter 07 has $dq_6 = 20 \ln 2$; in units of $\ln 2$ the parts come to 0, 4, -80 and 96. Let the running sum be kept in a format of 4 significant bits.

# %%
group = seven()
k, p, v, o, dout = (
    np.log([1, 1, 2, 4, 8, 4, 8.0]),
    np.array([1, 1, 2, 0, 0, 4, 8]) / 16,
    np.array([8, 0, 4, 16, 2, -8, 6.0]),
    2.0,
    16.0,
)
share = p * dout * (v - o) * k / np.log(2)  # what each key gives to dq of row 6
four = [float(share[j : j + 2].sum().round(9)) for j in range(0, 7, 2)]
print("parts of dq of row 6:", four)


def four_bits(x):
    """The nearest number of 4 significant bits, ties to the even one."""
    if x == 0:
        return 0.0
    unit = 2.0 ** (np.floor(np.log2(abs(x))) - 3)
    return float(np.round(x / unit) * unit)


def add_in_four_bits(parts):
    total, seen = 0.0, []
    for part in parts:
        total = four_bits(total + part)
        seen.append(total)
    return total, seen


for name, order in (("first to last", four), ("last to first", four[::-1])):
    print("%s: %g, running sums %s" % (name, *add_in_four_bits(order)))
visible = sum(group.mask()[6, j : j + 2].any() for j in range(0, 7, 2))
reveal(
    "parts of dq of row 6 of the seven tokens, from key tiles of two",
    int(visible),
    "row 6 sees a key of every tile.",
)
reveal(
    "0, 4, -80, 96 added from the last to the first in a format of 4 bits; the exact sum is 20",
    add_in_four_bits(four[::-1])[0],
    "from the first to the last it is 16: 4 - 80 = -76 becomes -80.",
)

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
print(
    "%d different results, the worst %.1e from the exact sum, %.4f"
    % (len(sums), max(abs(s - exact) for s in sums), exact)
)
assert max(abs(s - exact) for s in sums) < 1e-5
assert 1 < len(sums) < 500

# %% [markdown]
# Each is right to rounding, but which one you get changes from run to run.

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
results_of_orders = []
for seed in range(50):
    order = np.random.default_rng(seed).permutation(64)
    results_of_orders.append(ordered_sum([(int(t), parts[t]) for t in order]))
if results_of_orders[0] is not None and any(np.asarray(x).dtype != np.float32 for x in results_of_orders):
    results_of_orders = ["not f32"]
check(
    "50 orders of arrival give",
    (
        "nothing"
        if results_of_orders[0] is None
        else (
            "not f32"
            if results_of_orders == ["not f32"]
            else "%d results" % len(set(map(float, results_of_orders)))
        )
    ),
    "1 results",
    mistakes=[
        ("not f32", "the sum must be kept in f32, as a kernel keeps it"),
        (
            lambda got: got.endswith("results"),
            "the bits still depend on who came first: put the parts in an order of their own before adding",
        ),
    ],
)
check("the result is the sum", float(results_of_orders[0]), exact, tolerance=1e-5)

# %% [markdown]
# ## How often does it happen?
#
# The fast backward kernels keep a tile of 128 keys (dk and dv stay in registers, summed over the prompt, all responses and all heads) and let queries pass by. So each *query* row's dq is added to by every key tile that it sees.

# %%
layout = dk.group(16384, [2048] * 28)
tiles_seen = lambda i: sum(-(-end // 128) - begin // 128 for begin, end in layout.key_ranges(int(i), int(i) + 1))
seen = [tiles_seen(i) for i in (0, 16383, 16384, layout.rows - 1)]
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
    print(
        "%-8s %s"
        % (
            name,
            {
                "DKV_ALWAYS": "always: each output has one owner that adds in one order",
                "DKV_NEVER": "never: atomics, whoever comes first",
                "DKV_ON_REQUEST": "on request: atomics, or each addition waits for its turn",
            }[order],
        )
    )

# %% [markdown]
# Twenty runs of one call on each kernel, compared bit by bit; and what the turns cost, the default beside the ordered mode of the fastest kernel:

# %%
for row in table("equal_bits")[0]:
    print("%-9s %-17s %s runs with other bits" % (row["direction"], row["kernel"], row["runs with other bits"]))
print(table("equal_bits")[1])

# %%
rows, origin = table("determinism")
price = [float(r["price of equal bits"].split()[0]) for r in rows]
reveal(
    "extra time of equal bits, largest problem, in percent",
    int(rows[-1]["price of equal bits"].split()[0]),
    "N, P, R = %s: %s ms as they come, %s ms in turns."
    % (rows[-1]["N, P, R"], rows[-1]["as they come, ms"], rows[-1]["in turns, ms"]),
)
figure, ax = axes(6.6, 3.0)
ax.barh(range(len(rows)), price, color=COOL[0])
for n, r in enumerate(rows):
    ax.text(
        max(price[n], 0) + 0.3,
        n,
        "%s   (%s to %s ms)" % (r["price of equal bits"], r["as they come, ms"], r["in turns, ms"]),
        va="center",
        fontsize=8,
    )
ax.set(
    yticks=range(len(rows)),
    yticklabels=[r["N, P, R"] for r in rows],
    xlabel="extra time, %",
    xlim=(0, 1.5 * max(price)),
    title="price of equal bits, Hopper backward, bf16, D = 128",
)
ax.tick_params(labelsize=8)
ax.invert_yaxis()
show(figure, "bars of the extra time of the ordered mode by shape, each with both times")
print(origin)

# %% [markdown]
# The other way, one owner for each output (rungs 1 and 2), waits for nobody and costs arithmetic instead: dq by rows and dk, dv by keys means that scores and their gradients are computed twice, seven products where five would do.

# %% [wrong] ordered | the bits still depend on who came first
# return add_up(value for tile, value in arrivals)

# %% [wrong] ordered | the sum must be kept in f32
# return sum(float(value) for tile, value in sorted(arrivals))

# %% [wrong] ordered | the result is the sum
# return np.float32(np.mean([value for tile, value in sorted(arrivals)]))
