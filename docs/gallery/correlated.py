# %% [markdown]
# # Noise that takes itself back
#
# Training adds releases up. Independent noise adds up too; banded noise is made so that later
# releases take back what earlier ones have added. Both runs have the same epsilon.

# %%
import matplotlib.pyplot as plt
import numpy as np

import privada as pv

STEPS, UNITS, BATCH = 400, 60_000, 600
budget = pv.Budget(epsilon=8.0, delta=1e-5)
strategies = pv.mechanism.compare_bands(
    units=UNITS, batch_size=BATCH, steps=STEPS, budget=budget, momentum=0.9
)
best = strategies[0]
independent = next(each for each in strategies if each.bands == 1)
print(f"{best.bands} bands leave {best.error / independent.error:.2f} of the noise")

figure, axis = plt.subplots(figsize=(7, 3.2))
axis.plot(
    *zip(*sorted((s.bands, s.error / independent.error) for s in strategies), strict=True), "o-"
)
axis.set_xscale("log", base=2)
axis.set_xlabel("bands")
axis.set_ylabel("noise left, over independent")
plt.show()

# %% [markdown]
# One coordinate of the noise, step by step and added up, made here with NumPy by the recurrence of
# the [page on correlated noise](../correlated.md).

# %%
random = np.random.default_rng(1)
figure, axes = plt.subplots(1, 2, figsize=(9, 3.2))
for strategy, name in ((best, f"{best.bands} bands"), (independent, "independent")):
    first = np.array(strategy.noise.coefficients) if strategy.bands > 1 else np.ones(1)
    noise = np.zeros(STEPS)
    for step in range(STEPS):
        past = noise[max(0, step - len(first) + 1) : step][::-1]
        noise[step] = (random.normal() - first[1 : 1 + len(past)] @ past) / first[0]
    noise *= strategy.noise_multiplier
    axes[0].plot(noise, label=name, linewidth=0.8)
    axes[1].plot(np.cumsum(noise), label=name)
for axis, title in zip(axes, ("noise of a step", "added up"), strict=True):
    axis.set_title(title)
    axis.set_xlabel("step")
axes[1].legend()
plt.show()
