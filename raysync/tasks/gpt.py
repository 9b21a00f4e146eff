"""A small pre-norm GPT over bytes, the model of `char_lm`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

_VOCABULARY = 256


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = self.project_in(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        out: Tensor = self.project_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class Layer(nn.Module):
    """Attention and a feed-forward net, each behind a norm and beside a shortcut."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.feed(self.norm2(x))
        return out


class Embedding(nn.Module):
    """Bytes and their positions as vectors."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(_VOCABULARY, width), nn.Embedding(context, width)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return out


class GPT(nn.Sequential):
    """Embedding, `depth` layers, norm, untied head; a sequence, so that it can be cut into stages."""

    def __init__(self, width: int, depth: int, heads: int, context: int, dropout: float) -> None:
        layers = [Layer(width, heads, dropout) for _ in range(depth)]
        super().__init__(Embedding(width, context), *layers, nn.LayerNorm(width), nn.Linear(width, _VOCABULARY))
