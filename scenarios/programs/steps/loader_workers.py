"""Ten steps fed by a DataLoader with two workers, which load torch and take no step; expected: 10 real steps, the hook fires 10 times."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2)
    )
    x, y = torch.randn(80, 8), torch.randint(0, 2, (80,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    # Spawned, so that each worker is a new interpreter.
    loader = DataLoader(
        TensorDataset(x, y),
        batch_size=8,
        num_workers=2,
        multiprocessing_context="spawn",
    )

    steps = 0
    for inputs, labels in loader:
        loss = cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    print("real steps:", steps)


if __name__ == "__main__":
    main()
