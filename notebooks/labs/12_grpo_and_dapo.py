# %% [markdown]
# # 12 · GRPO and DAPO
#
# *Lab of [chapter 12](../tutorials/12_grpo_and_dapo.md), 20 minutes, no GPU.* From rewards to the number that multiplies each token's gradient; and what sharing the prompt does to a learning curve.

# %%
predict("advantage of the better of two responses, rewards 1 and 0, deviation over n", 1)
predict("slope of a token's loss at r = 1.5, A = +1, clip 0.2 / 0.28", 0)
predict("slope at r = 1.5, A = -1", 1.5)
predict("DAPO's loss of 2 good tokens and 8 bad ones at r = 1", 0.6)

# %% [markdown]
# ## Your turn: advantages
#
# A response is compared with its siblings: $A_n = (r_n - \text{mean}) / \text{deviation}$, the deviation over n (not n - 1). A group whose rewards are all equal teaches nothing: all its advantages are 0.


# %%
def advantages(reward):
    reward = np.asarray(reward, float)
    # hole advantages: return the advantages of one group, [n]
    deviation = np.sqrt(((reward - reward.mean()) ** 2).mean())
    return (reward - reward.mean()) / deviation if deviation > 0 else np.zeros(len(reward))
    # end


# %%
for reward in ([1, 0], [1, 0, 0, 0, 0, 0, 0, 0], [0.2, 1.2, 1.1, 0.0, 0.7], [1, 1, 1]):
    with np.errstate(all="ignore"):
        got = advantages(reward)
    r = np.asarray(reward, float)
    check(
        "advantages of %s" % reward,
        got,
        dk.advantages(reward, population=True, epsilon=0),
        mistakes=[
            (dk.advantages(reward, epsilon=0), "that is the deviation over n - 1"),
            (
                dk.advantages(reward, divide_by_std=False),
                "the division by the deviation is missing (that is Dr.GRPO)",
            ),
            (lambda got: np.isnan(got).any(), "0 / 0: a group of equal rewards has the advantages 0"),
            (r, "rewards are no advantages: subtract the group's mean"),
        ],
    )
reveal(
    "advantage of the better of two responses, rewards 1 and 0, deviation over n",
    float(advantages([1, 0])[0]),
    "mean 1/2, deviation 1/2; the other one gets -1.",
)

# %% [markdown]
# ## Your turn: the clipped loss
#
# $l = -\min(rA,\; \mathrm{clip}(r, 1-low, 1+high)\,A)$, and its slope by the log-probability: $-rA$ where the first one is the smaller, 0 where the constant is.


# %%
def token_loss(r, A, low=0.2, high=0.28):
    # hole loss: return the loss and its slope, two numbers
    kept = np.clip(r, 1 - low, 1 + high)
    return (-r * A, -r * A) if r * A <= kept * A else (-kept * A, 0.0)
    # end


# %%
for r, A in ((1.5, 1), (1.5, -1), (0.5, 1), (0.5, -1), (1.1, 2), (0.9, -0.5), (1.0, 1)):
    loss, slope = dk.policy_loss([np.log(r)], [0.0], [1], [A])
    kept = np.clip(r, 0.8, 1.28)
    check(
        "loss and slope at r = %g, A = %g" % (r, A),
        np.array(token_loss(r, A) or [np.nan] * 2, float),
        np.array([loss, slope[0]]),
        tolerance=1e-6,
        mistakes=[
            (
                np.array([-kept * A, -r * A if kept == r else 0]),
                "the clip alone stops tokens that went the wrong way, too: that is what the min is for",
            ),
            (
                np.array([-max(r * A, kept * A), -r * A if r * A >= kept * A else 0]),
                "min, not max: the more pessimistic of the two",
            ),
            (np.array([-loss, -slope[0]]), "it is a loss: what is minimised has a minus sign"),
        ],
    )
reveal(
    "slope of a token's loss at r = 1.5, A = +1, clip 0.2 / 0.28",
    float(token_loss(1.5, 1)[1]),
    "good, and already far more likely than when it was sampled: nothing more to do.",
)
reveal(
    "slope at r = 1.5, A = -1",
    float(token_loss(1.5, -1)[1]),
    "bad, and more likely than before: it is pushed down, harder the further it went.",
)
r = np.linspace(0.3, 1.9, 161)
figure, axs = axes(7.4, 3.0, 2)
for ax, A in zip(axs, (1, -1)):
    loss, slope = zip(*[token_loss(x, A) for x in r])
    flat = np.array(slope) == 0
    ax.plot(r, loss, color=COOL[0], linewidth=2)
    ax.plot(np.where(flat, r, np.nan), np.where(flat, loss, np.nan), color=COOL[1], linewidth=4, label="slope 0")
    ax.axvspan(0.8, 1.28, color=GHOST, alpha=0.35)
    ax.set(title="A = %+d" % A, xlabel="ratio r", ylabel="loss of a token")
    ax.legend(fontsize=8)
show(
    figure,
    "the loss of a token over its ratio: for A = +1 flat above 1.28, for A = -1 flat below 0.8; the clip range is"
    " grey",
)

# %% [markdown]
# ## One constant tells the methods apart
#
# loss = sum of w l. DAPO: $w = 1/\text{tokens of the step}$. GRPO: $1/(\text{responses}\cdot\text{own length})$. Dr.GRPO: $1/(\text{responses}\cdot\text{maximal length})$. Two responses: 2 tokens with A = 1, 8 tokens with A = -1, all at r = 1.

# %%
zero = np.zeros(10)
print("method    a short token pushes   a long one   loss")
for method in ("dapo", "grpo", "dr_grpo"):
    loss, slope = dk.policy_loss(zero, zero, [2, 8], [1, -1], method=method, max_length=10)
    print("%-9s %18.4f %14.4f %6.2f" % (method, slope[0], slope[9], round(loss, 6) + 0.0))
whole = dk.policy_loss(zero, zero, [2, 8], [1, -1])[0]
reveal("DAPO's loss of 2 good tokens and 8 bad ones at r = 1", round(whole, 6), "-2/10 + 8/10.", 2)
pieces = [dk.policy_loss(np.zeros(n), np.zeros(n), [n], [a]) for n, a in ((2, 1), (8, -1))]
right = [dk.policy_loss(np.zeros(n), np.zeros(n), [n], [a], tokens=10, responses=2) for n, a in ((2, 1), (8, -1))]
print(
    "two micro-batches, each divided by its own tokens: %g; by the whole step's: %g"
    % (round(sum(p[0] for p in pieces), 6), round(sum(p[0] for p in right), 6))
)

# %% [markdown]
# The first sum is no DAPO loss any more: a short response weighs as much as a long one, as under GRPO, and no error appears. Normalisers are counted over the whole step.
#
# ## Learning, by step and by second
#
# Committed runs of `dualkv train` on the task "sort", with one seed, on both layouts: the same samples, the same losses up to rounding, another clock.

# %%
runs = {name: training("layouts_%s.jsonl" % name, "step") for name in ("packed", "replicated")}
about = training("layouts_packed.jsonl", "run")[-1]
smooth = lambda y: np.convolve(y, np.ones(5) / 5, "valid")
figure, axs = axes(7.6, 3.1, 2, sharey=True)
for (name, steps), colour, line in zip(runs.items(), (COOL[0], COOL[1]), ("-", "--")):
    accuracy = smooth([s["accuracy"] for s in steps])
    axs[0].plot([s["step"] for s in steps][4:], accuracy, line, color=colour, label=name)
    axs[1].plot([s["seconds"] for s in steps][4:], accuracy, line, color=colour, label=name)
axs[0].set(xlabel="step", ylabel="exact answers (mean of 5 steps)", title="by step: one curve")
axs[1].set(xlabel="seconds", title="by second: two")
axs[0].legend(fontsize=8)
show(figure, "accuracy of the packed and the replicated run: on top of each other by step, apart by second")
last = {name: steps[-1]["seconds"] for name, steps in runs.items()}
update = {name: sum(s["update_seconds"] for s in steps) for name, steps in runs.items()}
print(
    "%d steps, N = %d: %.1f s packed, %.1f s replicated: the whole loop %.1f times faster, the updates alone %.1f"
    " times"
    % (
        runs["packed"][-1]["step"],
        about["responses"],
        last["packed"],
        last["replicated"],
        last["replicated"] / last["packed"],
        update["replicated"] / update["packed"],
    )
)
print(
    "measured on %s, %d threads, %s, docs/results/training"
    % (about["device"], about["threads"], about["date"][:10])
)

# %%
figure, ax = axes(6.4, 3.1)
for seed, colour, line in ((1, COOL[0], "-"), (2, COOL[1], "--"), (3, COOL[2], ":")):
    held_out = training("sort_seed%d.jsonl" % seed, "evaluation")
    ax.plot(
        [e["step"] for e in held_out],
        [e["sampled"] for e in held_out],
        line,
        color=colour,
        marker="o",
        markersize=3,
        label="seed %d" % seed,
    )
ax.set(xlabel="step", ylabel="exact answers, held out", ylim=(0, 1.02), title="three seeds, one task")
ax.legend()
show(figure, "held-out accuracy of three seeds rises from about a third to above nine tenths")
print(
    "first and last: "
    + ", ".join(
        "%.2f to %.2f" % (e[0]["sampled"], e[-1]["sampled"])
        for e in (training("sort_seed%d.jsonl" % s, "evaluation") for s in (1, 2, 3))
    )
)

# %% [wrong] advantages | that is the deviation over n - 1
# deviation = reward.std(ddof=1)
# return (reward - reward.mean()) / deviation if deviation > 0 else np.zeros(len(reward))

# %% [wrong] advantages | a group of equal rewards has the advantages 0
# return (reward - reward.mean()) / reward.std()

# %% [wrong] advantages | that is Dr.GRPO
# return reward - reward.mean()

# %% [wrong] loss | that is what the min is for
# kept = np.clip(r, 1 - low, 1 + high)
# return -kept * A, -r * A if kept == r else 0.0

# %% [wrong] loss | min, not max
# kept = np.clip(r, 1 - low, 1 + high)
# return (-r * A, -r * A) if r * A >= kept * A else (-kept * A, 0.0)
