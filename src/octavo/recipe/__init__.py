"""Recipes: which formats the cache of a model is kept in and how, as an object and as a file."""

from octavo.recipe.file import RecipeFile
from octavo.recipe.layers import LayerFormats, layers_of, parse_layers
from octavo.recipe.model import ModelFacts
from octavo.recipe.scales import Scales
from octavo.recipe.settings import Recipe

__all__ = ["LayerFormats", "ModelFacts", "Recipe", "RecipeFile", "Scales", "layers_of", "parse_layers"]
