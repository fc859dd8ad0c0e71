# %% [markdown]
# # Rounds with clients
#
# 600 made-up clients with 5 to 60 records each; in a round about 100 of them train the model for
# two passes over their own records. What is protected is a client, with all its records.

# %%
import copy

import matplotlib.pyplot as plt
import torch

import privada as pv
from privada.core.tensors import Parameters

generator = torch.Generator().manual_seed(0)
truth = torch.randn(20, generator=generator)


def made(count):
    inputs = torch.randn(count, 20, generator=generator)
    return inputs, (inputs @ truth > 0).long()


clients = [made(5 + k % 56) for k in range(600)]
public = made(4000)


def curve(method, epsilon):
    model = torch.nn.Linear(20, 2)
    torch.nn.init.zeros_(model.weight)
    local = pv.federated.LocalSGD(lr=0.1, epochs=2, batch_size=10)

    def train(client, start):
        own = copy.deepcopy(model)
        parameters = Parameters(own)
        parameters.write_(start)
        local.train_(own, torch.nn.CrossEntropyLoss(), clients[client])
        return parameters.read()

    trainer = pv.federated.FederatedTrainer(
        model,
        pv.federated.InProcess(train, size=len(clients)),
        method=method,
        batch_size=100,
        rounds=25,
        budget=pv.Budget(epsilon=epsilon, delta=1e-4),
    )
    reached = []
    for _ in range(trainer.steps):
        trainer.step()
        with torch.no_grad():
            reached.append((trainer.model(public[0]).argmax(1) == public[1]).float().mean().item())
    return reached


# %%
figure, axis = plt.subplots(figsize=(7, 3.6))
for epsilon in (1.0, 4.0):
    axis.plot(curve(pv.methods.DPSGD(lr=1.0, clip=0.5), epsilon), label=f"DP-FedAvg, {epsilon:g}")
axis.plot(curve(pv.methods.DPAdam(lr=0.05, clip=0.5), 4.0), "--", label="DP-FedAdam, 4")
axis.set_xlabel("round")
axis.set_ylabel("accuracy on public records")
axis.legend(title="method, epsilon")
plt.show()
