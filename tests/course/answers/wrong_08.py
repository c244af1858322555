"""Wrong and right answers to the exercises of notebook 08."""

import generators_08
import places_08
import saves_08

WRONG = {1: generators_08.WRONG, 2: saves_08.WRONG, 3: places_08.WRONG}
RIGHT = {1: generators_08.RIGHT, 2: saves_08.RIGHT, 3: places_08.RIGHT}
