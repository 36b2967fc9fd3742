"""The exact part of placement: who sits where when parties compete, by integer programming.

Owns the model and the way to its optimum; HiGHS is imported here and nowhere else, and only when parties compete. The
goals count one after the other: nobody left standing, few nodes for fleets that pack, least cost, and on a tie the
nodes that are preferred. For each, the model's relaxation gives a bound and nearly all of the answer; what it leaves
in fractions is solved as a small integer program, which usually meets the bound and so is known to be the optimum;
otherwise a search goes on among the seats that the bound doesn't rule out. Nothing here depends on the time that
passes, so equal inputs give equal answers. Refuses to give back anything worse than the seating it was given.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

import highspy
import numpy
from numpy.typing import NDArray

from lium_plan.kinds.values import Placement
from lium_plan.planning.seating import Party, Room, Seating, score

MOST_USD = Decimal(1_000_000)
"""Dearer offers count as this: they stay the last choice, and the arithmetic stays exact."""
PRICE_UNIT = 0.00001
CLOSE = 1e-6
"""Figures that are closer than this are the same; prices are multiples of ten times as much."""
NEAR = 0.001
"""What is not `exact` may end so near the bound, as a part of the cost."""
STANDING_EFFORT, PACKS_EFFORT, COST_EFFORT, TIES_EFFORT = 200_000, 6_000, 10_000, 3_000
"""How long a search goes on: its nodes times the columns that it goes through. Only packing large fleets needs all."""
FEW_COLUMNS = 300
"""Up to so many, packing and ties are searched to the end too."""
BRIEFLY = {"mip_pool_soft_limit": 100, "mip_lp_age_limit": 2, "mip_allow_restart": False}
"""Few cuts: they cost more than they help where what is left is small."""
STANDING_WEIGHT, PACK_WEIGHT = 1000.0, 10.0
"""For a first attempt at all goals together, in terms of the dearest seat."""


class _Quiet(highspy.Highs):
    """The library says hello on stdout when it sets up its callbacks, before it can be told not to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def enableCallbacks(self) -> None:
        return


@dataclass(frozen=True, slots=True)
class Solved:
    seating: Seating
    bound_usd: float
    """No seating with as many members and as few packed nodes costs less (of a large market: with those nodes)."""


def solve(
    parties: Sequence[Party], room: Room, start: Seating, *, ranks: Mapping[str, int], exact: bool = True
) -> Solved:
    """The best seating of parties that compete. `ranks`: the order in which nodes are preferred at equal cost.

    Not `exact`: a short look, for many parties; what it finds is nearly always within `NEAR` of the bound.
    """
    model = _Model(parties, room, start)
    standing, packs = model.standing_goal(), model.packs_goal()
    thorough = exact and model.columns <= FEW_COLUMNS
    if not exact:
        model.attempt()
    everybody = standing.is_reached(model.values, 0.0)
    model.pursue(standing, effort=STANDING_EFFORT)  # searched to the end in any case: nobody is left out for speed
    model.keep(standing)
    if thorough:
        model.pursue(packs, effort=PACKS_EFFORT)
        model.keep(packs)
    elif packs.factors:
        if exact or not everybody:
            model.attempt()
        model.keep_packs()
    bound = model.pursue(model.cost_goal(), effort=COST_EFFORT if exact else 0)
    if exact:
        model.keep(model.cost_goal())
        model.pursue(model.rank_goal(ranks), effort=TIES_EFFORT if thorough else 0)
    found = model.seating()
    better = score(parties, room, found) <= score(parties, room, start)
    return Solved(found if better else start, bound)


@dataclass(frozen=True, slots=True)
class _Seat:
    party: int
    node: str
    price_usd: float
    most: int
    gpu_count: int


@dataclass(slots=True)
class _Row:
    lower: float
    upper: float
    local: bool = False
    """It binds what happens on one node."""
    columns: list[int] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)

    def add(self, column: int, factor: float) -> None:
        self.columns.append(column)
        self.factors.append(factor)


@dataclass(frozen=True, slots=True)
class _Goal:
    """A sum to be made as small as it can be."""

    factors: Mapping[int, float]
    unit: float
    """The sum is a multiple of it."""

    def value(self, values: Sequence[float]) -> float:
        return math.fsum(factor * values[column] for column, factor in self.factors.items())

    def least(self, bound: float) -> float:
        """The least that the sum can be, given the relaxation's bound."""
        return max(0.0, math.ceil(bound / self.unit - 0.1) * self.unit)

    def is_reached(self, values: Sequence[float], least: float) -> bool:
        return self.value(values) <= least + self.unit / 10 + CLOSE / 10


class _Model:
    """Columns: a count for each party and node, the standing of each party, whether a packing fleet is on a node."""

    def __init__(self, parties: Sequence[Party], room: Room, start: Seating) -> None:
        self._parties = parties
        self._room = room
        self.seats = [
            _Seat(
                number,
                node,
                float(min(offer.price_per_hour_usd, MOST_USD)),
                room.most(party, node),
                party.gpu_count,
            )
            for number, party in enumerate(parties)
            for node, offer in party.candidates.items()
            if room.most(party, node)
        ]
        self._upper = [float(seat.most) for seat in self.seats]
        self._rows: list[_Row] = []
        self._standing = self._add_standing()
        self._add_capacities()
        self._add_spread()
        self._packs = self._add_packs()
        self.values = self._from(start)

    @property
    def columns(self) -> int:
        return len(self._upper)

    # --- the model -----------------------------------------------------------------------------------------------

    def _column(self, upper: float) -> int:
        self._upper.append(upper)
        return len(self._upper) - 1

    def _add_standing(self) -> list[int]:
        rows = [_Row(party.size, party.size) for party in self._parties]
        for column, seat in enumerate(self.seats):
            rows[seat.party].add(column, 1.0)
        standing = [self._column(party.size) for party in self._parties]
        for row, column in zip(rows, standing, strict=True):
            row.add(column, 1.0)
        self._rows.extend(rows)
        return standing

    def _add_capacities(self) -> None:
        by_node: dict[str, list[int]] = {}
        for column, seat in enumerate(self.seats):
            by_node.setdefault(seat.node, []).append(column)
        for node, columns in by_node.items():
            free = _reachable(self._room.free[node], [self.seats[column] for column in columns])
            row = _Row(-math.inf, free, local=True)
            for column in columns:
                row.add(column, self.seats[column].gpu_count)
            if sum(self.seats[column].most * self.seats[column].gpu_count for column in columns) > free:
                self._rows.append(row)

    def _add_spread(self) -> None:
        """Parties of one fleet: it spreads as a whole."""
        rows: dict[tuple[str, str], _Row] = {}
        for column, seat in enumerate(self.seats):
            party = self._parties[seat.party]
            if party.placement is Placement.SPREAD:
                rows.setdefault((party.fleet, seat.node), _Row(-math.inf, 1.0, local=True)).add(column, 1.0)
        self._rows.extend(row for row in rows.values() if len(row.columns) > 1)

    def _add_packs(self) -> dict[tuple[str, str], int]:
        used: dict[tuple[str, str], int] = {}
        for column, seat in enumerate(tuple(self.seats)):
            party = self._parties[seat.party]
            place = (party.fleet, seat.node)
            if party.placement is not Placement.PACK or place in self._room.living:
                continue
            if place not in used:
                used[place] = self._column(1.0)
            row = _Row(-math.inf, 0.0, local=True)
            row.add(column, 1.0)
            row.add(used[place], -float(seat.most))
            self._rows.append(row)
        return used

    def _from(self, seating: Seating) -> list[float]:
        values = [0.0] * len(self._upper)
        for column, seat in enumerate(self.seats):
            party = self._parties[seat.party]
            count = seating.get(party.number, {}).get(seat.node, 0)
            values[column] = float(count)
            if count and (party.fleet, seat.node) in self._packs and party.placement is Placement.PACK:
                values[self._packs[party.fleet, seat.node]] = 1.0
        for party, column in zip(self._parties, self._standing, strict=True):
            values[column] = float(party.size - sum(seating.get(party.number, {}).values()))
        return values

    def seating(self) -> Seating:
        found: dict[int, dict[str, int]] = {party.number: {} for party in self._parties}
        for seat, value in zip(self.seats, self.values, strict=False):
            if round(value):
                found[self._parties[seat.party].number][seat.node] = round(value)
        return found

    # --- goals ---------------------------------------------------------------------------------------------------

    def standing_goal(self) -> _Goal:
        return _Goal(dict.fromkeys(self._standing, 1.0), 1.0)

    def packs_goal(self) -> _Goal:
        return _Goal(dict.fromkeys((*self._packs.values(), *self._lone_seats()), 1.0), 1.0)

    def cost_goal(self) -> _Goal:
        return _Goal({column: seat.price_usd for column, seat in enumerate(self.seats)}, PRICE_UNIT)

    def rank_goal(self, ranks: Mapping[str, int]) -> _Goal:
        return _Goal({column: float(ranks[seat.node]) for column, seat in enumerate(self.seats)}, 1.0)

    def all_goals(self) -> _Goal:
        """A sum in which those that come first weigh most; its least is nearly always the least of each in turn."""
        dearest = max((seat.price_usd for seat in self.seats), default=0.0)
        standing = dict.fromkeys(self._standing, STANDING_WEIGHT * dearest)
        factors = {**self.cost_goal().factors, **standing}
        for column in self.packs_goal().factors:
            factors[column] = factors.get(column, 0.0) + PACK_WEIGHT * dearest
        return _Goal(factors, PRICE_UNIT)

    def attempt(self) -> None:
        """A short look at all goals together, for something better to go on from."""
        self.values, _ = self._search(self.all_goals(), effort=0).best()

    def pursue(self, goal: _Goal, *, effort: int) -> float:
        """Make the goal's sum as small as can be, without giving up on those that are kept, and tell the bound."""
        if goal.is_reached(self.values, 0.0):
            return 0.0
        self.values, bound = self._search(goal, effort=effort).best()
        return bound

    def keep(self, goal: _Goal) -> None:
        """From now on the sum grows no more."""
        row = _Row(-math.inf, goal.value(self.values) + (CLOSE if goal.unit < 1.0 else 0.0))
        for column, factor in goal.factors.items():
            if factor:
                row.add(column, factor)
        if row.columns:
            self._rows.append(row)

    def keep_packs(self) -> None:
        """From now on fleets that pack are on no other nodes than now; a much easier thing than on no more nodes."""
        for column in self._packs.values():
            self._upper[column] = self.values[column]
        self.keep(_Goal(dict.fromkeys(self._lone_seats(), 1.0), 1.0))

    def _lone_seats(self) -> list[int]:
        """Fleets of one that pack: each is on as many nodes as it has seats."""
        return [column for column, seat in enumerate(self.seats) if self._parties[seat.party].lone_packs]

    def _search(self, goal: _Goal, *, effort: int) -> _Search:
        return _Search(self._rows, self._upper, len(self.seats), goal, self.values, effort=effort)


def _reachable(free: int, seats: Iterable[_Seat]) -> int:
    """The most GPUs of a node that orders of these sizes can fill: 6 of 7 when all come in pairs."""
    sums = 1
    for size in {seat.gpu_count for seat in seats}:
        for _ in range(free // size):
            sums |= sums << size
    return max(total for total in range(free + 1) if sums >> total & 1)


class _Search:
    """One goal over one set of rows. The first `seats` columns are seats."""

    def __init__(
        self,
        rows: Sequence[_Row],
        upper: Sequence[float],
        seats: int,
        goal: _Goal,
        start: list[float],
        *,
        effort: int,
    ) -> None:
        self._rows = rows
        self._upper = upper
        self._seats = seats
        self._goal = goal
        self._start = start
        self._effort = effort
        """0: it may end when it is near the bound."""
        self._thorough = effort > 0

    def best(self) -> tuple[list[float], float]:
        """The best values found, and a bound that no values beat."""
        relaxed = self._run(self._upper)
        if relaxed is None:
            return self._start, 0.0
        loose, bound = list(relaxed.getSolution().col_value), relaxed.getInfo().objective_function_value
        least = self._goal.least(bound)
        enough = least + self._near(loose)
        best = self._start
        if not self._goal.is_reached(best, enough):
            best = self._better(best, self._rounded(loose, enough))
        if self._effort and not self._goal.is_reached(best, enough):
            return self._searched(best, loose, list(relaxed.getSolution().col_dual), bound, least)
        return best, least

    def _near(self, loose: Sequence[float]) -> float:
        """What may be missing: a part of what the seats cost."""
        if self._effort:
            return 0.0
        return NEAR * sum(self._goal.factors.get(column, 0.0) * loose[column] for column in range(self._seats))

    def _better(self, values: list[float], found: list[float] | None) -> list[float]:
        if found is None or self._goal.value(found) > self._goal.value(values) - CLOSE:
            return values
        return found

    def _rounded(self, loose: Sequence[float], enough: float) -> list[float] | None:
        """What the relaxation settled is kept, but on nodes where it left a fraction; the rest is a small program."""
        unsettled: set[int] = set()
        for row in self._rows:
            if row.local and any(_is_fraction(loose[column]) for column in row.columns):
                unsettled.update(row.columns)
        lower = [
            0.0 if column >= self._seats or column in unsettled or _is_fraction(value) else float(round(value))
            for column, value in enumerate(loose)
        ]
        found = self._run(self._upper, lower, nodes=1, target=enough, slack=self._near(loose))
        return None if found is None else _whole(found)

    def _searched(
        self, best: list[float], loose: Sequence[float], duals: Sequence[float], bound: float, least: float
    ) -> tuple[list[float], float]:
        """A search among the seats that can be part of something better than `best`."""
        gap = self._goal.value(best) - bound
        lower, upper = [0.0] * len(self._upper), list(self._upper)
        for column, dual in enumerate(duals):
            if dual > gap + CLOSE and loose[column] <= CLOSE:
                upper[column] = 0.0
            elif -dual > gap + CLOSE and loose[column] >= upper[column] - CLOSE:
                lower[column] = upper[column]
        found = self._run(upper, lower, nodes=max(1, self._effort // len(upper)), target=least, start=best)
        if found is None:
            return best, least
        best = self._better(best, _whole(found))
        proved = found.getInfo().mip_dual_bound
        # A search that ends at its target has met the bound; its own was not worked out.
        proved = self._goal.least(proved) if math.isfinite(proved) else least
        return best, max(least, min(proved, self._goal.value(best)))

    def _run(
        self,
        upper: Sequence[float],
        lower: Sequence[float] | None = None,
        *,
        nodes: int | None = None,
        target: float = 0.0,
        slack: float = 0.0,
        start: Sequence[float] | None = None,
    ) -> _Quiet | None:
        """The solver with an answer in it; None when it has none. `nodes` None: the relaxation."""
        solver = _Quiet()
        options: dict[str, bool | int | float] = {"output_flag": False, "threads": 1, "random_seed": 0}
        if nodes is not None:
            options |= {
                "mip_max_nodes": nodes,
                "mip_rel_gap": 0.0,
                "mip_abs_gap": max(slack, self._goal.unit / 10),
                "objective_target": target + self._goal.unit / 10,
                **({} if self._thorough else BRIEFLY),
            }
        for name, value in options.items():
            solver.setOptionValue(name, value)
        solver.passModel(self._problem(upper, lower or [0.0] * len(upper), whole=nodes is not None))
        if start is not None:
            first = highspy.HighsSolution()
            first.col_value = list(start)
            solver.setSolution(first)
        solver.run()
        solved = solver.getInfo().primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        return solver if solved else None

    def _problem(self, upper: Sequence[float], lower: Sequence[float], *, whole: bool) -> highspy.HighsLp:
        costs = numpy.zeros(len(upper))
        costs[list(self._goal.factors)] = list(self._goal.factors.values())
        problem = highspy.HighsLp()
        problem.num_col_, problem.num_row_ = len(upper), len(self._rows)
        problem.col_cost_, problem.col_lower_, problem.col_upper_ = costs, _floats(lower), _floats(upper)
        problem.row_lower_ = _floats(row.lower for row in self._rows)
        problem.row_upper_ = _floats(row.upper for row in self._rows)
        problem.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        problem.a_matrix_.start_ = numpy.cumsum([0, *(len(row.columns) for row in self._rows)])
        problem.a_matrix_.index_ = numpy.fromiter((column for row in self._rows for column in row.columns), int)
        problem.a_matrix_.value_ = _floats(factor for row in self._rows for factor in row.factors)
        if whole:
            problem.integrality_ = [highspy.HighsVarType.kInteger] * len(upper)
        return problem


def _floats(values: Iterable[float]) -> NDArray[numpy.float64]:
    return numpy.fromiter(values, float)


def _is_fraction(value: float) -> bool:
    return abs(value - round(value)) > CLOSE


def _whole(solver: _Quiet) -> list[float]:
    return [float(round(value)) for value in solver.getSolution().col_value]
