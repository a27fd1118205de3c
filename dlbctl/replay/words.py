"""The 512 words prompts are made of.

Each is one token, at a prompt's start and after a space, in the vocabularies of GPT-2, cl100k and o200k;
512 so that nine bits choose one. The order is part of every prompt's text: append to it, and replays of
before and after no longer share prefixes.
"""

from __future__ import annotations

WORDS: tuple[bytes, ...] = tuple(
    b"""
time year people way day man thing woman life child world school state family student group country
problem hand part place case week company system program question work government number night point
home water room mother area money story fact month lot right study book eye job word business issue side
kind head house service friend father power hour game line end member law car city community name team
minute kid body information back parent face level office door health person art war history party
result change reason research girl air force education foot boy age policy process music market sense
nation plan college interest death effect use class control care field development role rate heart drug
show leader light voice wife mind price report son view town road arm value building action season tax
director position player record paper space ground form event matter center site project activity star
table need court oil cost figure street image phone data picture practice piece land product doctor wall
patient worker news test movie north south east west love support technology step baby computer type
film tree source hair look window culture energy period course plant term letter condition choice rule
daughter floor campaign material population call hospital church risk fire future bank success property
fight answer animal series note purpose blood article agency board winter spring river forest farm
bridge castle train ship plane horse dog cat bird fish bear wolf apple orange bread rice corn wine beer
cake fruit egg green blue white black yellow brown silver gold gray big small long short high low old
new young good bad great little early late large important different local social public national strong
able free full sure clear recent real best better true human major open close simple hard easy common
natural similar final main ready single personal left current medical central available likely general
dark fine hot cold warm cool dry fast slow deep wide thin heavy soft quiet clean dirty rich safe smart
sweet fresh bright sharp flat round square make take come see know get give find think tell leave feel
put bring begin keep hold write stand let mean set meet run pay sit lie lead read grow fall send build
draw break cut rise drive buy wear add follow create allow win offer remember consider wait die stay
reach kill suggest raise pass sell require pull return develop carry agree turn start help play move
live include continue learn try ask talk want watch stop walk sleep sing jump throw catch drop pick push
fly ride cook eat wash thank travel share save miss join cover enter cause count check press hit kick
shoot shake touch cry seven eight nine ten one two three four five six million first second third last
next half most many few some any each every both all more less much about above after against along
among around before below between during except from inside into near off onto out over past since
through under until upon with within without again almost also
""".split()
)
