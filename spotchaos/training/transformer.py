"""A character-level transformer with dropout, small enough for a step in milliseconds."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Causal self-attention and a feed-forward layer, each with a residual.

    Args:
        size: features of one character.
        heads: attention heads; divides `size`.
        dropout: share of activations dropped, in attention and after each half.
    """

    def __init__(self, size: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.attend_norm = nn.LayerNorm(size)
        self.query_key_value = nn.Linear(size, 3 * size)
        self.join = nn.Linear(size, size)
        self.feed_norm = nn.LayerNorm(size)
        self.feed = nn.Sequential(
            nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, width, _ = x.shape
        qkv = self.query_key_value(self.attend_norm(x))
        q, k, v = qkv.view(batch, width, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        share = self.dropout.p if self.training else 0.0
        seen = functional.scaled_dot_product_attention(
            q, k, v, dropout_p=share, is_causal=True
        )
        x = x + self.dropout(self.join(seen.transpose(1, 2).reshape(x.shape)))
        return x + self.dropout(self.feed(self.feed_norm(x)))


class CharTransformer(nn.Module):  # type: ignore[misc]  # as above
    """Predicts the next character of a text.

    Args:
        vocabulary: number of characters.
        width: longest text in one sample, in characters.
        size: features of one character.
        layers: number of blocks.
        heads: attention heads in each.
        dropout: share of activations dropped.
    """

    def __init__(
        self, *, vocabulary: int = 128, width: int = 32, size: int = 32,
        layers: int = 2, heads: int = 2, dropout: float = 0.1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.characters = nn.Embedding(vocabulary, size)
        self.places = nn.Embedding(width, size)
        self.blocks = nn.Sequential(
            *(Block(size, heads, dropout) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(size)
        self.head = nn.Linear(size, vocabulary)
        self.dropout = nn.Dropout(dropout)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Map codes of shape (batch, width) to logits (batch, width, vocabulary)."""
        places = torch.arange(codes.shape[1], device=codes.device)
        x = self.dropout(self.characters(codes) + self.places(places))
        return self.head(self.norm(self.blocks(x)))
