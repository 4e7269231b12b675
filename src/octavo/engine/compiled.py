"""How torch.compile is asked to make the dense part of decode steps.

A step of one sequence multiplies one row by every weight of the model: it is as fast as the weights are read.
Such products go through a kernel of our own, those of the same row (queries, keys and values; gate and up)
in one launch; everything between them is left to Inductor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

from octavo.kernels.product import MOST, row_products, takes

__all__ = ["RowProducts", "compile_dense"]

aten = torch.ops.aten


def compile_dense(module: torch.nn.Module) -> Any:
    """`module` through torch.compile, for decode steps on a GPU."""
    return torch.compile(
        module, options={"post_grad_custom_pre_pass": RowProducts(), "triton.enable_pdl": True}
    )


@torch.library.custom_op("octavo::row_products", mutates_args=())
def products(x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    """x [1, K] times weights [N, K]ᵀ, side by side: [1, ΣN]."""
    if x.is_cuda:
        return row_products(x, weights)
    return torch.cat([x @ weight.T for weight in weights], 1)


@products.register_fake
def _(x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    return x.new_empty(1, sum(len(weight) for weight in weights))


@dataclass(frozen=True)
class Product:
    """A node that multiplies the row `x` [1, K] by the transpose of `weight` [N, K] and adds `bias` [N]."""

    node: Node
    x: Any
    weight: Any
    bias: Any

    @classmethod
    def of(cls, node: Node) -> Product | None:
        """None where the node is no such product, or none that the kernel takes."""
        if node.target is aten.mm.default:
            bias, (x, turned) = None, node.args
        elif node.target is aten.addmm.default and not node.kwargs:
            bias, x, turned = node.args
        else:
            return None
        if turned.target is not aten.permute.default or list(turned.args[1]) != [1, 0]:  # type: ignore
            return None
        weight: Any = turned.args[0]  # type: ignore[union-attr]
        if weight.op != "placeholder" or not takes(x.meta["val"], weight.meta["val"]):  # type: ignore
            return None
        return cls(node, x, weight, bias)

    @property
    def source(self) -> Any:
        """What the row is a view of: every product has a view of its own."""
        node = self.x
        while node.target in (aten.view.default, aten.reshape.default):
            node = node.args[0]
        return node


class RowProducts(CustomGraphPass):
    """Replaces products of one row in a graph by `octavo::row_products`."""

    def __call__(self, graph: Graph) -> None:
        rows: dict[Node, list[Product]] = {}
        for product in filter(None, map(Product.of, graph.nodes)):
            rows.setdefault(product.source, []).append(product)
        for together in rows.values():
            for n in range(0, len(together), MOST):
                merge(graph, together[n : n + MOST])

    def uuid(self) -> Any:
        return get_hash_for_files((__file__,))


def merge(graph: Graph, together: list[Product]) -> None:
    """One launch for products of the same row."""
    first = together[0]
    weights = [p.weight.meta["val"] for p in together]

    def call(target: Any, *args: Any) -> Node:
        made = graph.call_function(target, args)
        made.meta["val"] = target(*torch.fx.map_arg(args, lambda a: a.meta["val"]))
        return made

    with graph.inserting_before(first.node):
        side_by_side = call(torch.ops.octavo.row_products.default, first.x, [p.weight for p in together])
        begin = 0
        for product, weight in zip(together, weights, strict=True):
            part = call(aten.slice.Tensor, side_by_side, 1, begin, begin + len(weight))
            begin += len(weight)
            if product.bias is not None:
                part = call(aten.add.Tensor, part, product.bias)
            product.node.replace_all_uses_with(part)
    for product in together:
        graph.erase_node(product.node)
