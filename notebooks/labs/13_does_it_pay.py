# %% [markdown]
# # 13 · Does it pay?
#
# *Lab of [chapter 13](../tutorials/13_does_it_pay.md), 15 minutes, no GPU.* From tokens and pairs to the time of an update and of a whole loop; predictions beside committed measurements; and when to leave it alone.

# %%
predict("Qwen3-8B, P = 8192, 16 x 1024: times fewer FLOPs of an update (rho = 6, A = 3.86)", 5.25)
predict("times faster a loop of which the update took half", 1.68)
predict("times faster with N = 1", 1)

# %% [markdown]
# ## Your turn: an update
#
# Times add, ratios do not. `cost` has `linear_flops`, `head_flops` and `pair_flops`, forward, for one layout. A training step does the linear layers and the head 3 times (forward, and two products backward), attention 3.5 times (two products forward, five backward).


# %%
def update_flops(cost):
    # hole update: return the FLOPs of a training step, forward and backward
    return 3 * (cost["linear_flops"] + cost["head_flops"]) + 3.5 * cost["pair_flops"]
    # end


def loop_speedup(share, ratio):
    # hole loop: return how many times faster the loop is, when its `share` of update becomes `ratio` times faster
    return 1 / (share / ratio + 1 - share)
    # end


# %%
saving = dk.saving(dk.group(8192, [1024] * 16))
for P, lengths in ((8192, [1024] * 16), (3, [2, 2]), (512, [4096] * 4), (4096, [100, 0, 2000])):
    s = dk.saving(dk.group(P, lengths))
    flops = update_flops(s["replicated"]), update_flops(s["packed"])
    both = s["replicated"], s["packed"]
    forward = [c["linear_flops"] + c["head_flops"] + c["pair_flops"] for c in both]
    headless = [3 * c["linear_flops"] + 3.5 * c["pair_flops"] for c in both]
    check(
        "update ratio of P=%d, N=%d" % (P, len(lengths)),
        flops[0] / flops[1] if None not in flops else None,
        s["step_ratio"],
        mistakes=[
            (
                forward[0] / forward[1],
                (
                    "that is the forward pass alone: backward takes twice as long in the linear layers, 2.5 times"
                    " in attention"
                ),
            ),
            (s["rho"], "rho is the ratio of the linear layers alone"),
            (headless[0] / headless[1], "the LM head is missing, and it hardly shrinks"),
        ],
    )
    check(
        "FLOPs of the packed update",
        flops[1],
        headless[1] + 3 * s["packed"]["head_flops"],
        mistakes=[
            (lambda got: True, "the ratio is right, but not the FLOPs: forward once, backward 2 or 2.5 times"),
        ],
    )
for share, ratio, faster in ((0.5, 5.25, 1.68), (1.0, 3.0, 3.0), (0.0, 9.0, 1.0), (0.8, 2.0, 5 / 3)):
    check(
        "loop, update %g %% of the time, %g times faster" % (100 * share, ratio),
        loop_speedup(share, ratio),
        faster,
        mistakes=[
            (
                share * ratio + 1 - share,
                "times add, ratios do not: what remains is share / ratio of the old time",
            ),
            (ratio, "the rest of the loop is as slow as before"),
        ],
    )

# %%
reveal(
    "Qwen3-8B, P = 8192, 16 x 1024: times fewer FLOPs of an update (rho = 6, A = 3.86)",
    update_flops(saving["replicated"]) / update_flops(saving["packed"]),
    "%.0f TFLOP instead of %.0f."
    % (update_flops(saving["packed"]) / 1e12, update_flops(saving["replicated"]) / 1e12),
    3,
)
reveal(
    "times faster a loop of which the update took half",
    loop_speedup(0.5, saving["step_ratio"]),
    "the other half is untouched: even an update that costs nothing would only give 2.",
    3,
)
reveal(
    "times faster with N = 1",
    dk.saving(dk.group(8192, [1024]))["step_ratio"],
    "one response has nobody to share its prompt with.",
    3,
)

# %% [markdown]
# ## The map
#
# Times fewer FLOPs of an update of Qwen3-8B for responses of 1024 tokens; and the loop that remains when sampling and the rest took half.

# %%
prompts, counts = 2.0 ** np.arange(7, 16.1, 1), [1, 2, 4, 8, 16, 32, 64]
ratio = np.array([[dk.saving(dk.group(int(P), [1024] * N))["step_ratio"] for P in prompts] for N in counts])
figure, axs = axes(7.8, 3.5, 2, sharey=True)
for ax, z, title in ((axs[0], ratio, "update"), (axs[1], 1 / (0.5 / ratio + 0.5), "loop, update 50 %")):
    image = ax.imshow(np.log2(z), cmap="cividis", origin="lower", vmin=0, vmax=4.5, aspect="auto")
    for i in range(len(counts)):
        for j in range(len(prompts)):
            ax.text(
                j,
                i,
                "%.3g" % round(z[i, j], 1 if z[i, j] < 9.95 else 0),
                ha="center",
                va="center",
                fontsize=7,
                color="white" if np.log2(z[i, j]) < 2.6 else INK,
            )
    ax.set(
        title=title + ", times",
        xlabel="P (tokens), R = 1024",
        xticks=range(len(prompts)),
        yticks=range(len(counts)),
        yticklabels=counts,
    )
    ax.set_xticklabels(["%d" % P if P < 1024 else "%dk" % (P // 1024) for P in prompts], fontsize=8)
axs[0].set_ylabel("N (responses)")
show(
    figure,
    "two maps over P and N: the update gains up to %.0f times at the upper right and nothing along N = 1; the"
    " loop never gains more than 2"
    % ratio.max(),
)

# %% [markdown]
# ## Measured: does time follow the prediction?
#
# Committed runs of the CPU benchmark: the same kernel on both layouts, beside A, the ratio of pairs.

# %%
bench = [r for r in measurements() if r["backend"] == "cpu" and "replicated" in r]
rows = [
    (
        r["shape"]["prompt"],
        r["shape"]["responses"],
        r["shape"]["dtype"],
        r["shape"]["head_dim"],
        r["A"],
        r["forward_ratio"],
        r["backward_ratio"],
    )
    for r in bench
]
print("   P    N  type   D     A   forward  backward")
for row in sorted(rows, key=lambda row: row[4]):
    print("%4d %4d  %-5s %3d %5.2f %8.2f %8.2f" % row)
figure, ax = axes(5.2, 3.6)
ax.plot([0.8, 25], [0.8, 25], color=GHOST)
ax.plot([r[4] for r in rows], [r[5] for r in rows], "o", color=COOL[0], label="forward")
ax.plot([r[4] for r in rows], [r[6] for r in rows], "^", color=COOL[1], label="backward")
ax.set(
    xscale="log",
    yscale="log",
    xlabel="A, predicted",
    ylabel="replicated ms / packed ms",
    title="attention on a CPU",
    xticks=[1, 2, 5, 10, 20],
    xticklabels=["1", "2", "5", "10", "20"],
    yticks=[1, 2, 5, 10, 20],
    yticklabels=["1", "2", "5", "10", "20"],
)
ax.minorticks_off()
ax.legend()
show(figure, "measured ratios of forward and backward lie on the diagonal from A = 1 to A = 18")
print(
    "measured on %s"
    % "; ".join(
        sorted({"%s, commit %s, %s" % (r["device"].split(",")[0], r["commit"], r["date"][:10]) for r in bench})
    )
)

# %% [markdown]
# And whole updates of a small model, forward, loss and backward, where nearly all work is per token: with the last layer computed for all rows, as most programs do, the ratio should be rho. The program here computes the last layer's output only for rows that predict. That helps the copies more, most of whose rows are prompts; so the ratio falls, with both layouts faster.

# %%
for name in ("update_n16_whole.jsonl", "update_n16.jsonl", "update_n32_whole.jsonl", "update_n32.jsonl"):
    once, run = training(name, "self_check")[0], training(name, "run")[0]
    packed, copies = (1e3 * float(np.median(once[way + "_seconds"])) for way in ("packed", "replicated"))
    print(
        "N = %d, last layer %-20s rho %.2f, measured %5.2f: %.1f ms instead of %.0f ms"
        % (
            run["responses"],
            "for all rows:" if run["whole_last_layer"] else "where it predicts:",
            once["replicated_rows"] / once["packed_rows"],
            copies / packed,
            packed,
            copies,
        )
    )

# %% [markdown]
# ## When to leave it alone
#
# A slower kernel may eat the gain. Suppose the packed attention kernel reaches a share x of the rate of a plain one: it pays while x A > 1.

# %%
for P, N, R in ((8192, 16, 1024), (2048, 8, 2048), (512, 16, 4096)):
    A = dk.saving(dk.group(P, [R] * N))["pair_ratio"]
    print(
        "P = %4d, %2d x %4d: A = %.2f, so attention pays while the packed kernel has more than %.0f %% of the"
        " other's rate" % (P, N, R, A, 100 / A)
    )

# %% [wrong] update | that is the forward pass alone
# return cost["linear_flops"] + cost["head_flops"] + cost["pair_flops"]

# %% [wrong] update | the LM head is missing
# return 3 * cost["linear_flops"] + 3.5 * cost["pair_flops"]

# %% [wrong] loop | times add, ratios do not
# return share * ratio + 1 - share

# %% [wrong] loop | the rest of the loop is as slow as before
# return ratio

# %% [wrong] update | the ratio is right, but not the FLOPs
# return cost["linear_flops"] + cost["head_flops"] + 3.5 / 3 * cost["pair_flops"]
