"""Languages of names, letter by letter, with Opacus, to be compared with char_lstm.py.

The three places in which it differs from char_lstm.py are marked 1, 2 and 3.
The names are made up.

    python examples/char_lstm_opacus.py --epochs 5
"""

import argparse

import torch
import torch.nn as nn
from opacus import PrivacyEngine  # 1
from opacus.layers import DPLSTM as LSTM  # 1
from torch.utils.data import DataLoader

from data import LETTERS, Names


class Classifier(nn.Module):
    """Letters, a recurrent layer, and a class from its last state."""

    def __init__(self, embedding, hidden, classes):
        super().__init__()
        self.embedding = nn.Embedding(1 + len(LETTERS), embedding)
        self.rnn = LSTM(embedding, hidden, batch_first=True)
        self.out = nn.Linear(hidden, classes)

    def forward(self, x):
        states, _ = self.rnn(self.embedding(x))
        return self.out(states[:, -1])


def train(model, criterion, device, loader, optimizer):
    model.train()
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()


def test(model, device, loader):
    model.eval()
    right = 0
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            right += int((model(x).argmax(dim=1) == y).sum())
    return right / len(loader.dataset)


def main(argv=None):
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=2.0)
    parser.add_argument("--sigma", type=float, default=1.0, help="noise multiplier")
    parser.add_argument("--clip", type=float, default=1.5, help="the largest norm of a gradient")
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, default=8000, help="how many names to train on")
    parser.add_argument("--embedding", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=64)
    args = parser.parse_args(argv)
    device = torch.device(args.device)

    torch.manual_seed(0)
    dataset, public = Names(args.rows, seed=1), Names(1000, seed=2)
    loader = DataLoader(dataset, batch_size=args.batch_size)
    test_loader = DataLoader(public, batch_size=1024)
    model = Classifier(args.embedding, args.hidden, len(Names.languages)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    criterion = nn.CrossEntropyLoss()

    engine = PrivacyEngine()  # 2
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=args.sigma,
        max_grad_norm=args.clip,
    )

    for epoch in range(1, args.epochs + 1):
        train(model, criterion, device, loader, optimizer)
        epsilon = engine.get_epsilon(args.delta)  # 3
        accuracy = test(model, device, test_loader)
        print(f"epoch {epoch}: accuracy {accuracy:.4f}, epsilon {epsilon:.3f} at {args.delta}")
    return accuracy, epsilon


if __name__ == "__main__":
    main()
