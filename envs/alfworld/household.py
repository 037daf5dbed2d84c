"""What is where in a household: the kinds of objects and receptacles, where objects tend to lie, which rooms have what.

The expert searches by it, the procedural games are drawn from it. Kinds are written as ALFWorld's ids write them; texts
show them in lower case.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thing:
    """A kind of object.

    Attributes:
        kind: its name.
        rooms: letters of the rooms it is found in: Kitchen, Living room, Bedroom, baThroom.
        traits: c cleanable, h heatable, k coolable, s sliceable, r can hold things, t lamp (cannot be taken).
        places: kinds of receptacles that may hold it, the likeliest first.
    """

    kind: str
    rooms: str
    traits: str
    places: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """A kind of receptacle: whether it opens, and how many there are in each room, as (room, fewest, most)."""

    kind: str
    openable: bool
    counts: tuple[tuple[str, int, int], ...]


_FOOD = "Fridge DiningTable CounterTop SideTable Microwave SinkBasin GarbageCan"
_CUTLERY = "DiningTable CounterTop SideTable SinkBasin Drawer"
_SMALL = "Desk Dresser CoffeeTable SideTable DiningTable TVStand Sofa ArmChair Shelf Drawer"
_THINGS = f"""
AlarmClock    B    -    DiningTable Desk CounterTop Dresser SideTable Shelf
Apple         K    chks {_FOOD}
BaseballBat   B    -    Bed DiningTable SideTable
BasketBall    B    -    Bed Desk Dresser SideTable
Book          LB   -    Bed Desk Dresser CoffeeTable SideTable DiningTable Sofa ArmChair Shelf Drawer Cabinet
Bowl          KB   ckr  Fridge Desk DiningTable CounterTop Dresser SinkBasin Microwave Shelf Cabinet
Box           L    r    DiningTable CoffeeTable Sofa Dresser TVStand Desk SideTable ArmChair Shelf Cabinet
Bread         K    hks  DiningTable CounterTop Fridge SideTable Microwave GarbageCan
ButterKnife   K    c    {_CUTLERY}
CD            B    -    Desk Dresser DiningTable SideTable GarbageCan ArmChair Drawer Cabinet Safe Shelf
Candle        TL   -    Toilet CounterTop Cart Shelf Cabinet SideTable CoffeeTable Dresser DiningTable Drawer
CellPhone     BL   -    Bed Desk Dresser Safe SideTable DiningTable CoffeeTable Sofa ArmChair Drawer Shelf
Cloth         T    c    BathtubBasin CounterTop Dresser Cart Cabinet Shelf SinkBasin Drawer Toilet GarbageCan
CreditCard    BL   -    {_SMALL} CounterTop Safe Ottoman
Cup           K    chkr Fridge DiningTable SideTable SinkBasin CounterTop Microwave Shelf Cabinet
DeskLamp      BL   t    Desk Dresser SideTable CoffeeTable Shelf
DishSponge    KT   c    DiningTable CounterTop SinkBasin BathtubBasin Shelf GarbageCan Drawer Cabinet Cart Toilet
Egg           K    chks {_FOOD}
FloorLamp     LB   t    SideTable Dresser Desk DiningTable Sofa
Fork          K    c    {_CUTLERY}
Glassbottle   K    -    DiningTable CounterTop SinkBasin Fridge GarbageCan Shelf Cabinet
HandTowel     T    -    HandTowelHolder CounterTop SinkBasin BathtubBasin Cabinet
Kettle        K    c    StoveBurner CounterTop DiningTable Cabinet SinkBasin
KeyChain      BL   -    {_SMALL} Safe Ottoman
Knife         K    c    {_CUTLERY}
Ladle         K    c    CounterTop DiningTable SinkBasin Drawer Cabinet
Laptop        BL   -    Bed DiningTable Desk CoffeeTable Sofa Dresser TVStand SideTable ArmChair Ottoman
Lettuce       K    cks  DiningTable Fridge CounterTop SideTable SinkBasin GarbageCan
Mug           KB   chkr CoffeeMachine Desk DiningTable Fridge CounterTop SideTable Microwave SinkBasin Shelf Cabinet
Newspaper     L    -    DiningTable Dresser CoffeeTable Sofa Ottoman SideTable TVStand ArmChair Shelf GarbageCan Drawer
Pan           K    ckr  StoveBurner CounterTop DiningTable Fridge SinkBasin Cabinet
Pen           BL   -    Desk Dresser SideTable CoffeeTable DiningTable Shelf GarbageCan Drawer
Pencil        BL   -    Desk Dresser SideTable CoffeeTable DiningTable Shelf GarbageCan Drawer
PepperShaker  K    -    DiningTable SideTable CounterTop Shelf Cabinet Drawer
Pillow        BL   -    Bed Sofa ArmChair Ottoman
Plate         K    chkr DiningTable CounterTop Fridge CoffeeTable Cabinet SinkBasin Microwave SideTable Shelf
Plunger       T    -    Cabinet Cart
Pot           K    ckr  StoveBurner CounterTop DiningTable Fridge SinkBasin Cabinet
Potato        K    chks {_FOOD}
RemoteControl L    -    CoffeeTable TVStand Sofa DiningTable Ottoman Dresser SideTable ArmChair Shelf Drawer
SaltShaker    K    -    DiningTable SideTable CounterTop Shelf Cabinet Drawer
SoapBar       T    c    CounterTop BathtubBasin SideTable Cart Toilet SinkBasin Shelf GarbageCan Cabinet Drawer
SoapBottle    KT   -    DiningTable Toilet CounterTop SideTable GarbageCan Cart Shelf Cabinet Drawer
Spatula       K    c    {_CUTLERY}
Spoon         K    c    {_CUTLERY}
SprayBottle   T    -    Cart SideTable Toilet Dresser Shelf CounterTop GarbageCan Cabinet Drawer
Statue        L    -    CoffeeTable TVStand Dresser DiningTable SideTable Shelf Desk
TeddyBear     B    -    Bed
TennisRacket  B    -    Bed Desk Dresser SideTable
TissueBox     LBT  -    CoffeeTable Cart DiningTable CounterTop TVStand Desk SideTable Shelf Dresser Cabinet Drawer
ToiletPaper   T    -    ToiletPaperHanger Toilet CounterTop Dresser SideTable Cart Shelf GarbageCan Cabinet Drawer
Tomato        K    chks {_FOOD}
Towel         T    -    TowelHolder
Vase          L    -    CoffeeTable Dresser TVStand Shelf DiningTable SideTable Cabinet Desk Safe
Watch         LB   -    CoffeeTable TVStand DiningTable Dresser SideTable Desk Drawer Shelf Safe
WateringCan   L    -    CoffeeTable Dresser SideTable Shelf Desk Drawer Cabinet
WineBottle    K    k    DiningTable CounterTop GarbageCan Shelf Cabinet Fridge
"""
_PLACES = """
ArmChair           L0-2 B0-1
BathtubBasin       T0-1
Bed                B1-2
Cabinet+           K3-12 T0-5 L0-3
Cart               T0-1
CoffeeMachine      K1-1
CoffeeTable        L1-2
CounterTop         K1-4 T1-2
Desk               B1-2 L0-1
DiningTable        K0-2 L0-1
Drawer+            K2-8 L0-5 B2-6 T0-4
Dresser            L0-1 B0-1
Fridge+            K1-1
GarbageCan         K1-1 L1-1 B1-1 T1-1
HandTowelHolder    T1-2
LaundryHamper      B0-1
Microwave+         K1-1
Ottoman            L0-1
Safe+              L0-1 B0-1
Shelf              K0-3 L0-5 B0-5 T0-2
SideTable          K0-1 L1-2 B0-2 T0-1
SinkBasin          K1-1 T1-2
Sofa               L1-2
StoveBurner        K4-4
TVStand            L1-1
Toaster            K1-1
Toilet             T1-1
ToiletPaperHanger  T1-1
TowelHolder        T1-2
"""
ROOMS = {"K": range(1, 31), "L": range(201, 231), "B": range(301, 331), "T": range(401, 431)}
"""The numbers of each room's scenes, as AI2-THOR counts them."""


def _things() -> dict[str, Thing]:
    rows = (line.split() for line in _THINGS.strip().splitlines())
    return {kind: Thing(kind, rooms, traits, tuple(places)) for kind, rooms, traits, *places in rows}


def _places() -> dict[str, Place]:
    found = {}
    for line in _PLACES.strip().splitlines():
        kind, *counts = line.split()
        ranges = tuple((item[0], *map(int, item[1:].split("-"))) for item in counts)
        found[kind.rstrip("+")] = Place(kind.rstrip("+"), kind.endswith("+"), ranges)  # type: ignore[arg-type]
    return found


THINGS = _things()
PLACES = _places()
LIKELY = {kind.lower(): tuple(place.lower() for place in thing.places) for kind, thing in THINGS.items()}
"""Shown name of an object -> shown names of where to look for it, in order."""
