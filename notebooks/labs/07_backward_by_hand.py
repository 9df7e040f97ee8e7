# %% [markdown]
# # 07 · Backward by hand
#
# *Lab of [chapter 07](../tutorials/07_backward_by_hand.md), 20 minutes, no GPU.* All three gradients of attention, where the N responses meet, and why their sum is kept in f32.

# %%
predict("the sum of all dv, the gradient that arrives being 1, 2, 4, 8, 16, 8, 16", 55)
predict("the sum of all dk", 0)
predict("in bf16: 256, then 100 times + 1", 256)

# %%
group = seven()
mask = group.mask()
w, v = np.array([1, 1, 2, 4, 8, 4, 8.0]), np.array([8, 0, 4, 16, 2, -8, 6.0])
q, k, dout = np.ones(7), np.log(w), np.array([1, 2, 4, 8, 16, 8, 16.0])
score = np.where(mask, q[:, None] * k[None, :], -np.inf)  # the scale is 1
p = np.exp(score - np.log(mask @ w)[:, None])  # weights come back from score and lse
o = p @ v

# %% [markdown]
# ## Your turn: three gradients
#
# $$dv_j=\sum_i p_{ij}\,dout_i \qquad ds_{ij}=p_{ij}\,(dout_i\,v_j-\delta_i),\quad \delta_i=dout_i\,o_i \qquad dq_i=\sum_j ds_{ij}\,k_j \qquad dk_j=\sum_i ds_{ij}\,q_i$$
#
# Everything is a vector [7] but p and ds [7, 7]; i is the query (first index), j the key. The general formula has a scale c in dq and dk; here it is 1.


# %%
def gradients(p, q, k, v, o, dout):
    # hole gradients: return dq, dk, dv, each [7]
    dv = p.T @ dout
    ds = p * (dout[:, None] * v[None, :] - (dout * o)[:, None])
    return ds @ k, ds.T @ q, dv
    # end


# %%
mine = gradients(p, q, k, v, o, dout)
wide = lambda x: np.concatenate([np.asarray(x, float)[:, None, None], np.zeros((len(x), 1, 7))], 2)
library = dk.attention(wide(q), wide(k), wide(v), group, scale=1.0, do=wide(dout), backend="ref", dtype="f64")
own = group.segment[:, None] == group.segment[None, :]
no_delta = p * (dout[:, None] * v[None, :])
ds = p * (dout[:, None] * v[None, :] - (dout * o)[:, None])
mistakes = {
    "dv": [
        ((p * own).T @ dout, "the prompt's dv lacks the responses: every row that sees a key adds to it"),
        (p @ dout, "dv is a sum over queries: p transposed"),
    ],
    "dq": [
        (no_delta @ k, "delta is missing: raising one weight lowers the others of its row"),
        (ds.T @ k, "dq is a sum over keys, dk over queries"),
    ],
    "dk": [
        (no_delta.T @ q, "delta is missing: raising one weight lowers the others of its row"),
        ((ds * own).T @ q, "the prompt's dk lacks the responses"),
    ],
}
for name, got in zip(("dq", "dk", "dv"), mine or (None,) * 3):
    check(name, got, library[name][:, 0, 0], mistakes=mistakes[name])
print("dq / ln 2 ", ((mine[0] / np.log(2)).round(9) + 0.0).tolist())
print("dk        ", (mine[1].round(9) + 0.0).tolist())
print("dv        ", mine[2].round(9).tolist())

# %%
reveal(
    "the sum of all dv, the gradient that arrives being 1, 2, 4, 8, 16, 8, 16",
    float(mine[2].sum()),
    "raising every v by 1 raises every o by 1: the sum of dout.",
)
reveal("the sum of all dk", float(abs(mine[1].sum().round(9))), "one vector added to all keys changes no weight.")

# %% [markdown]
# ## Finite differences do not lie
#
# The loss is $\sum_i dout_i\,o_i$. Push one input by a little, both ways, and look at the loss; the slope must be the gradient.


# %%
def loss(q, k, v):
    return float(
        (
            dk.attention(wide(q), wide(k), wide(v), group, scale=1.0, backend="ref", dtype="f64")["o"][:, 0, 0]
            * dout
        ).sum()
    )


h = 1e-5
for name, n, x, gradient in (("q", 0, q, mine[0]), ("k", 1, k, mine[1]), ("v", 2, v, mine[2])):
    slope = []
    for t in range(7):
        up, down = [[q, k, v] for _ in range(2)]
        up[n], down[n] = x + h * (np.arange(7) == t), x - h * (np.arange(7) == t)
        slope.append((loss(*up) - loss(*down)) / (2 * h))
    check("the slopes of the loss by %s are d%s" % (name, name), np.array(slope), gradient, tolerance=1e-7)

# %% [markdown]
# ## Where the responses meet
#
# $p_{ij}\,dout_i$, who adds how much to $dv_j$. The columns of the prompt collect from everybody; dq (rows) belongs to its row alone.

# %%
add = p * dout[:, None]
figure, ax = axes(5.4, 4.0)
bottom = np.zeros(7)
for s, name, colour, hatch in (
    (0, "rows of the prompt", PROMPT, ""),
    (1, "rows of a", RESPONSES[0], "//"),
    (2, "rows of b", RESPONSES[1], ".."),
):
    part = add[group.segment == s].sum(0)
    ax.bar(range(7), part, bottom=bottom, color=colour, hatch=hatch, edgecolor="white", label=name)
    bottom += part
for j in range(7):
    ax.text(j, bottom[j] + 0.1, "%g" % bottom[j].round(9), ha="center")
ax.set(
    xticks=range(7),
    xticklabels=["%d %s" % (j, c) for j, c in enumerate(letters(group))],
    xlabel="key row j",
    ylabel="dv",
    title="dv by the rows that add to it",
)
ax.legend(fontsize=8, ncol=3, loc="upper center", bbox_to_anchor=(0.5, -0.16))
show(
    figure,
    "stacked bars of dv: prompt rows 0, 1, 2 receive from the prompt, from a and from b; rows of a and b only"
    " from themselves",
)

# %% [markdown]
# ## One sum, rounded once
#
# The prompt's own rows give a dv of 256, each of N = 100 responses gives 1. Kept in bf16, every addition is rounded.

# %%
running = {"bf16": [256.0], "f32": [256.0]}
for n in range(100):
    for dtype, sums in running.items():
        sums.append(float(dk.round_to([sums[-1] + 1], dtype)[0]))
reveal(
    "in bf16: 256, then 100 times + 1",
    running["bf16"][-1],
    "257 lies between 256 and 258, and rounds to the even neighbour, 256. In f32 the sum is %g."
    % running["f32"][-1],
)
figure, ax = axes(5.6, 2.7)
ax.plot(running["f32"], color=COOL[0], label="kept in f32, rounded once: 356")
ax.plot(running["bf16"], color=COOL[1], linestyle="--", label="kept in bf16: 256")
ax.set(xlabel="responses added", ylabel="running sum of dv")
ax.legend(fontsize=8)
show(figure, "the running sum in f32 rises from 256 to 356; in bf16 it never leaves 256")

# %% [wrong] gradients | delta is missing
# ds = p * (dout[:, None] * v[None, :])
# return ds @ k, ds.T @ q, p.T @ dout

# %% [wrong] gradients | lacks the responses
# same = group.segment[:, None] == group.segment[None, :]
# ds = p * (dout[:, None] * v[None, :] - (dout * o)[:, None])
# return ds @ k, ds.T @ q, (p * same).T @ dout

# %% [wrong] gradients | dv is a sum over queries
# ds = p * (dout[:, None] * v[None, :] - (dout * o)[:, None])
# return ds @ k, ds.T @ q, p @ dout
