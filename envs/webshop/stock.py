"""What the procedural shop sells: kinds of products, their attributes, options and words."""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """One kind of product.

    Attributes:
        category: department.
        path: levels of the product's category, broad to narrow.
        query: search phrase.
        noun: what it is called in a title.
        prices: usual range in dollars.
        attributes: what its products may have.
        options: option name -> pool in ``POOLS``.
        uses: what it may be for.
    """

    category: str
    path: tuple[str, ...]
    query: str
    noun: str
    prices: tuple[float, float]
    attributes: tuple[str, ...]
    options: dict[str, str]
    uses: tuple[str, ...]


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


POOLS: dict[str, tuple[str, ...]] = {
    name: _list(values)
    for name, values in {
        "clothes colour": "black, white, navy, heather grey, burgundy, forest green, khaki, sky blue, mustard, coral,"
        " charcoal, dusty pink, olive, cream, royal blue, rust, lavender, teal, plum, camel",
        "clothes size": "x-small, small, medium, large, x-large, xx-large, 3x-large",
        "shoe size": "5, 5.5, 6, 6.5, 7, 7.5, 8, 8.5, 9, 9.5, 10, 10.5, 11, 12",
        "fit": "men, women, youth, tall, petite",
        "shade": "ivory, porcelain, honey beige, warm almond, espresso brown, rose petal, cherry red, mocha,"
        " peach glow, soft nude, berry, golden sand, deep plum, classic red, cool taupe",
        "scent": "lavender, citrus, vanilla, eucalyptus, unscented, rose, green tea, coconut, sandalwood, mint,"
        " jasmine",
        "bottle": "2 fl oz, 4 fl oz, 8 fl oz, 12 fl oz, 16 fl oz, 32 fl oz",
        "pack": "pack of 1, pack of 2, pack of 3, pack of 4, pack of 6, pack of 8, pack of 12, pack of 24",
        "home colour": "walnut, white oak, matte black, antique bronze, slate grey, natural pine, ivory, sage green,"
        " terracotta, navy, brushed nickel, mahogany, dove grey, espresso",
        "print": "botanical, geometric, marble, plaid, mountain view, ocean waves, abstract lines, sunflower,"
        " city skyline, polka dots, autumn leaves, moon phases",
        "cushion size": "12 x 20 inch, 16 x 16 inch, 18 x 18 inch, 20 x 20 inch, 24 x 24 inch, 26 x 26 inch",
        "rug size": "2 ft x 3 ft, 3 ft x 5 ft, 4 ft x 6 ft, 5 ft x 8 ft, 8 ft x 10 ft, 9 ft x 12 ft",
        "bed size": "twin, twin xl, full, queen, king, california king",
        "curtain size": "42w x 63l, 42w x 84l, 52w x 63l, 52w x 84l, 52w x 95l, 52w x 108l",
        "furniture size": "24 inch, 30 inch, 36 inch, 42 inch, 48 inch, 55 inch, 60 inch",
        "device colour": "midnight black, silver, space grey, arctic white, ocean blue, rose gold, graphite,"
        " lime green",
        "storage": "32 gb, 64 gb, 128 gb, 256 gb, 512 gb, 1 tb, 2 tb",
        "cable": "1.5 feet, 3 feet, 6 feet, 10 feet, 15 feet, 25 feet, 50 feet",
        "phone": "iphone 11, iphone 12 mini, iphone 13 pro, iphone 14, galaxy s20, galaxy s21 ultra, galaxy s22,"
        " pixel 6, pixel 7 pro, oneplus 9",
        "screen": "24 inches, 27 inches, 32 inches, 43 inches, 50 inches, 55 inches, 65 inches",
        "flavour": "dark chocolate, sea salt, maple pecan, wild berry, honey mustard, jalapeno lime, original,"
        " peanut butter, cinnamon apple, lemon ginger, smoky barbecue, vanilla bean, mango chili, rosemary garlic",
        "weight": "4 ounce, 8 ounce, 12 ounce, 1 pound, 2 pound, 3.5 pound, 5 pound",
        "roast": "light roast, medium roast, dark roast, french roast, decaf medium roast",
    }.items()
}

_DRESS = (
    "machine wash, hand wash, long sleeve, short sleeve, slim fit, relaxed fit, stretch fabric, polyester spandex,"
    " cotton blend, quick drying, moisture wicking, wrinkle free, classic fit, tumble dry, daily wear"
)
_LEGS = (
    "machine wash, elastic waist, drawstring closure, straight leg, wide leg, high waist, button closure, relaxed"
    " fit, slim fit, stretch fabric, water resistant, polyester spandex, zipper pockets, gym workout"
)
_FEET = (
    "rubber sole, memory foam, non slip, arch support, lace up, slip on, water resistant, breathable mesh, leather"
    " lining, ankle strap, closed toe, wide width, shock absorbing, synthetic sole"
)
_SKIN = (
    "cruelty free, fragrance free, paraben free, dry skin, sensitive skin, hyaluronic acid, vitamin c, anti aging,"
    " tea tree, natural ingredients, oil free, fine lines, dermatologist tested, sulfate free"
)
_HAIR = (
    "sulfate free, paraben free, color treated hair, dry hair, damaged hair, argan oil, hair growth, cruelty free,"
    " natural ingredients, curly hair, heat protection, coconut oil, oily scalp, alcohol free"
)
_LOOK = (
    "long lasting, cruelty free, easy apply, water proof, fragrance free, high pigment, paraben free, vegan formula,"
)
_LOOK += " smudge proof, matte finish, travel size, oil free, sensitive skin"
_CLOTH = (
    "machine washable, super soft, double sided, eco friendly, hypoallergenic cover, hidden zipper, fade resistant,"
)
_CLOTH += " easy care, non slip, living room, dining room, printing technology, light weight, spot clean"
_WOOD = (
    "solid wood, easy assemble, storage space, space saving, metal legs, tempered glass, wood finish, heavy duty,"
    " living room, contemporary style, mid century, faux leather, height adjustable, assembly required, easy clean"
)
_TECH = (
    "fast charging, high speed, easy install, plug play, noise cancelling, hands free, usb port, wireless bluetooth,"
)
_TECH += (
    " long lasting battery, heavy duty, water resistant, high definition, gold plated, aluminum alloy, carrying case"
)
_CASE = (
    "wireless charging, shock absorbing, drop protection, scratch resistant, tempered glass, dust proof, easy install,"
)
_CASE += " card slots, kickstand design, non slip, slim profile, raised edges, magnetic closure"
_SNACK = (
    "gluten free, non gmo, dairy free, low sugar, plant based, high protein, keto friendly, artificial colors, nut"
    " free, soy free, certified organic, low carb, resealable bag, individually wrapped, kosher certified"
)
_DRINK = (
    "usda organic, caffeine free, low calorie, fair trade, sugar free, non gmo, gluten free, freeze dried, natural"
    " flavors, single serve, certified organic, antioxidant rich, zero sugar, small batch"
)


def _kind(
    category: str, path: str, query: str, noun: str, low: float, high: float, attributes: str, options: str, uses: str
) -> Kind:
    pairs = (pair.partition("=") for pair in options.split(","))
    named = {name.strip(): pool.strip() for name, _, pool in pairs}
    return Kind(category, _list(path), query, noun, (low, high), _list(attributes), named, _list(uses))


_WEAR = "color=clothes colour,size=clothes size"
_SHOES = "color=clothes colour,size=shoe size"
_OUT = "office days, weekend trips, summer parties, travel, school, cold mornings, date nights, garden work"
_RUN = "trail running, gym training, hiking, long walks, tennis, nursing shifts, city walks, camping"
_CARE = "morning routines, night care, travel bags, gift sets, winter months, spa days, teens, mature skin"
_ROOM = "bedrooms, small apartments, patios, reading corners, guest rooms, nurseries, entryways, home offices"
_WORK = "home offices, gaming, travel, classrooms, road trips, video calls, studios, workshops"
_EAT = "lunch boxes, road trips, office snacks, hikers, gift baskets, movie nights, breakfast, parties"
_C, _H = "Clothing Shoes and Jewelry", "Home and Kitchen"
_B, _E, _G = "Beauty and Personal Care", "Electronics", "Grocery and Gourmet Food"

KINDS: tuple[Kind, ...] = (
    _kind("fashion", f"{_C}, Men, Shirts, Button Down", "men's dress shirts", "Shirt", 15, 60, _DRESS, _WEAR, _OUT),
    _kind("fashion", f"{_C}, Men, Shirts, T Shirts", "men's t-shirts", "T-Shirt", 9, 30, _DRESS, _WEAR, _OUT),
    _kind("fashion", f"{_C}, Men, Pants, Casual", "men's casual pants", "Pants", 18, 70, _LEGS, _WEAR, _OUT),
    _kind("fashion", f"{_C}, Men, Shorts, Active", "men's shorts", "Shorts", 12, 45, _LEGS, _WEAR, _RUN),
    _kind("fashion", f"{_C}, Women, Dresses, Casual", "women's dresses", "Dress", 18, 80, _DRESS, _WEAR, _OUT),
    _kind("fashion", f"{_C}, Women, Tops, Blouses", "women's blouses", "Blouse", 12, 50, _DRESS, _WEAR, _OUT),
    _kind("fashion", f"{_C}, Women, Pants, Leggings", "women's leggings", "Leggings", 10, 45, _LEGS, _WEAR, _RUN),
    _kind("fashion", f"{_C}, Women, Sweaters, Cardigans", "women's cardigans", "Cardigan", 20, 75, _DRESS, _WEAR, _OUT),
    _kind("fashion", f"{_C}, Men, Shoes, Sneakers", "men's sneakers", "Sneakers", 25, 120, _FEET, _SHOES, _RUN),
    _kind("fashion", f"{_C}, Women, Shoes, Sandals", "women's sandals", "Sandals", 18, 70, _FEET, _SHOES, _OUT),
    _kind("fashion", f"{_C}, Women, Shoes, Boots", "women's ankle boots", "Boots", 30, 140, _FEET, _SHOES, _OUT),
    _kind("fashion", f"{_C}, Men, Outerwear, Jackets", "men's jackets", "Jacket", 30, 160, _DRESS, _WEAR, _RUN),
    _kind("beauty", f"{_B}, Skin Care, Face, Serums", "face serums", "Serum", 9, 60,
          _SKIN, "size=bottle,scent=scent", _CARE),
    _kind("beauty", f"{_B}, Skin Care, Body, Lotions", "body lotions", "Lotion", 6, 35,
          _SKIN, "size=bottle,scent=scent", _CARE),
    _kind("beauty", f"{_B}, Hair Care, Shampoos", "shampoos", "Shampoo", 7, 35,
          _HAIR, "size=bottle,scent=scent", _CARE),
    _kind("beauty", f"{_B}, Hair Care, Masks", "hair masks", "Hair Mask", 8, 40,
          _HAIR, "size=bottle,scent=scent", _CARE),
    _kind("beauty", f"{_B}, Makeup, Lips, Lipstick", "lipsticks", "Lipstick", 5, 30,
          _LOOK, "color=shade,size=pack", _CARE),
    _kind("beauty", f"{_B}, Makeup, Face, Foundation", "foundations", "Foundation", 8, 45,
          _LOOK, "color=shade,size=bottle", _CARE),
    _kind("beauty", f"{_B}, Makeup, Eyes, Eyeshadow", "eyeshadow palettes", "Eyeshadow Palette", 8, 50,
          _LOOK, "color=shade,size=pack", _CARE),
    _kind("beauty", f"{_B}, Skin Care, Sun, Sunscreens", "sunscreens", "Sunscreen", 8, 35,
          _SKIN, "size=bottle,scent=scent", _CARE),
    _kind("garden", f"{_H}, Bedding, Pillow Covers", "throw pillow covers", "Pillow Cover", 8, 35,
          _CLOTH, "color=print,size=cushion size", _ROOM),
    _kind("garden", f"{_H}, Bedding, Duvet Covers", "duvet covers", "Duvet Cover", 25, 110,
          _CLOTH, "color=print,size=bed size", _ROOM),
    _kind("garden", f"{_H}, Decor, Area Rugs", "area rugs", "Rug", 20, 220, _CLOTH, "color=print,size=rug size", _ROOM),
    _kind("garden", f"{_H}, Decor, Window Curtains", "window curtains", "Curtains", 15, 80,
          _CLOTH, "color=print,size=curtain size", _ROOM),
    _kind("garden", f"{_H}, Furniture, Living Room, Coffee Tables", "coffee tables", "Coffee Table", 60, 320,
          _WOOD, "color=home colour,size=furniture size", _ROOM),
    _kind("garden", f"{_H}, Furniture, Office, Desks", "computer desks", "Desk", 70, 350,
          _WOOD, "color=home colour,size=furniture size", _WORK),
    _kind("garden", f"{_H}, Furniture, Living Room, Bookcases", "bookcases", "Bookcase", 50, 280,
          _WOOD, "color=home colour,size=furniture size", _ROOM),
    _kind("garden", f"{_H}, Furniture, Dining Room, Bar Stools", "bar stools", "Bar Stool", 45, 240,
          _WOOD, "color=home colour,size=furniture size", _ROOM),
    _kind("garden", f"{_H}, Furniture, Bedroom, Nightstands", "nightstands", "Nightstand", 40, 210,
          _WOOD, "color=home colour,size=furniture size", _ROOM),
    _kind("electronics", f"{_E}, Headphones, Earbuds", "wireless earbuds", "Earbuds", 15, 180,
          _TECH, "color=device colour,size=pack", _WORK),
    _kind("electronics", f"{_E}, Audio, Portable Speakers", "portable speakers", "Speaker", 18, 200,
          _TECH, "color=device colour,size=pack", _ROOM),
    _kind("electronics", f"{_E}, Accessories, Hdmi Cables", "hdmi cables", "Cable", 6, 40,
          _TECH, "color=device colour,size=cable", _WORK),
    _kind("electronics", f"{_E}, Computers, External Drives", "external drives", "Drive", 25, 260,
          _TECH, "color=device colour,capacity=storage", _WORK),
    _kind("electronics", f"{_E}, Phones, Cases", "phone cases", "Case", 7, 40,
          _CASE, "color=device colour,fits=phone", _WORK),
    _kind("electronics", f"{_E}, Phones, Screen Protectors", "screen protectors", "Screen Protector", 5, 25,
          _CASE, "fits=phone,size=pack", _WORK),
    _kind("electronics", f"{_E}, Computers, Monitors", "computer monitors", "Monitor", 90, 600,
          _TECH, "color=device colour,size=screen", _WORK),
    _kind("electronics", f"{_E}, Cameras, Security", "security cameras", "Camera", 25, 190,
          _TECH, "color=device colour,size=pack", _ROOM),
    _kind("grocery", f"{_G}, Snacks, Bars", "snack bars", "Bars", 8, 40, _SNACK, "flavor=flavour,size=pack", _EAT),
    _kind("grocery", f"{_G}, Snacks, Crackers", "crackers", "Crackers", 5, 30,
          _SNACK, "flavor=flavour,size=weight", _EAT),
    _kind("grocery", f"{_G}, Snacks, Nuts", "mixed nuts", "Nuts", 8, 50, _SNACK, "flavor=flavour,size=weight", _EAT),
    _kind("grocery", f"{_G}, Beverages, Coffee, Ground", "ground coffee", "Coffee", 8, 45,
          _DRINK, "roast=roast,size=weight", _EAT),
    _kind("grocery", f"{_G}, Beverages, Tea, Herbal", "herbal tea", "Tea", 6, 35,
          _DRINK, "scent=scent,size=pack", _EAT),
    _kind("grocery", f"{_G}, Breakfast, Granola", "granola", "Granola", 6, 35,
          _SNACK, "flavor=flavour,size=weight", _EAT),
    _kind("grocery", f"{_G}, Sauces, Hot Sauces", "hot sauces", "Sauce", 5, 30,
          _SNACK, "flavor=flavour,size=bottle", _EAT),
)  # fmt: skip

BRAND_STARTS = _list(
    "North, Silver, Maple, Bright, Stone, Coral, Amber, Ever, Cedar, Blue, Iron, Wild, Sun, Moon, River, Oak, Lark,"
    " Fern, Echo, Prime, Vale, Harbor, Summit, Clover, Ember, Birch, Willow, Raven, Pearl, Terra"
)
BRAND_ENDS = _list(
    "field, wood, ly, craft, line, haven, peak, works, nest, crest, mark, side, loom, gate, ton, brook, well, ridge"
)
SERIES = _list(
    "Aurora, Breeze, Comet, Delta, Eclipse, Fjord, Glacier, Horizon, Indigo, Juniper, Kestrel, Lagoon, Meridian,"
    " Nimbus, Orchard, Pioneer, Quartz, Rapid, Solstice, Tundra, Umbra, Vista, Wander, Zephyr, Atlas, Bistro,"
    " Canyon, Domino"
)
