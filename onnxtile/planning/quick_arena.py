"""The arena of a model in the order of its file, planned with little effort: an upper bound of the arena of its plan."""

from __future__ import annotations

from functools import partial

from onnxtile.model.unfold import Unfolded
from onnxtile.planning.layout.aliases.find import LayoutFacts
from onnxtile.planning.layout.bodies import Terms, plan_bodies
from onnxtile.planning.layout.graph_layout import layouts
from onnxtile.planning.layout.insides import Insides
from onnxtile.planning.layout.ordering.order_search import OrderSearch
from onnxtile.planning.layout.scope import PlanScope
from onnxtile.planning.model_plan import PlanSettings
from onnxtile.planning.offsets.effort import LEVELS
from onnxtile.planning.offsets.memories import Allocation, allocate, memories
from onnxtile.planning.order import find_order
from onnxtile.planning.planner import find_planner


def quick_allocation(opened: Unfolded, settings: PlanSettings) -> Allocation:
    """Return the offsets of an opened model in the order of its file, in one memory without a limit.

    `plan_model` tries this order with this effort, too, so its arena is no larger, unless the graph is too wide to search its orders.
    """
    facts = LayoutFacts(opened.model, opened.shapes, opened.constants)
    scope = PlanScope(opened.model.graph, settings.io, settings.overwrite_inputs)
    own, planner, effort = find_order("model"), find_planner(settings.planner), LEVELS["low"]
    insides = Insides(facts, settings.alignment, settings.share)
    solve = partial(planner.plan, effort=effort)
    terms = Terms(
        facts,
        own,
        settings.alignment,
        settings.share,
        solve,
        settings.workspaces,
        insides.of,
        not settings.whole_buffers,
    )
    needs = terms.needs(opened.model.graph, plan_bodies(opened.model.graph, terms))
    search = OrderSearch(facts, scope, settings.alignment)
    found = layouts(search, own, settings.streams, settings.share, needs, in_parts=not settings.whole_buffers)
    return allocate(next(found).problem, memories(None), planner, effort)
