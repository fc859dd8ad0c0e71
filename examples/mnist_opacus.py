"""Images of digits with Opacus, to be compared with mnist.py.

The three places in which it differs from mnist.py are marked 1, 2 and 3.
The images are MNIST's where PRIVADA_DATA has them, else scikit-learn's digits.

    python examples/mnist_opacus.py --epochs 5
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from opacus import PrivacyEngine  # 1
from torch.utils.data import DataLoader

from data import images


class Net(nn.Module):
    """Two convolutions and two linear layers."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 8, stride=2, padding=3)
        self.conv2 = nn.Conv2d(16, 32, 4, stride=2)
        self.fc1 = nn.Linear(32 * 4 * 4, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.max_pool2d(torch.relu(self.conv1(x)), 2, 1)
        x = F.max_pool2d(torch.relu(self.conv2(x)), 2, 1)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


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
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--sigma", type=float, default=1.0, help="noise multiplier")
    parser.add_argument("--clip", type=float, default=1.0, help="the largest norm of a gradient")
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, default=None, help="how many training images to use")
    args = parser.parse_args(argv)
    device = torch.device(args.device)

    torch.manual_seed(0)
    dataset, public = images(args.rows)
    loader = DataLoader(dataset, batch_size=args.batch_size)
    test_loader = DataLoader(public, batch_size=1024)
    model = Net().to(device)
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
