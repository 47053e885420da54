"""Every table and figure of both papers as an item: what it needs, its commands, and its figures beside ours."""

from mixlab.studies.reproduce.items import Item, PaperFigure, Reading
from mixlab.studies.reproduce.listing import ITEMS, find_items
from mixlab.studies.reproduce.networks import ItemSetting, Network

__all__ = ["ITEMS", "Item", "ItemSetting", "Network", "PaperFigure", "Reading", "find_items"]
