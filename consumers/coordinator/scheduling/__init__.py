"""The scheduler assigns the free worker slots of a pool to waiting sessions.

`demand` says what each partition requests, `free_slots` what is available, `shares` how much of it this coordinator may use, `assignment`
who gets it; `scheduler` runs a round over all four. `queue` keeps each partition's waiting sessions in order.

Terms: a session is *active* in a stage while it has a ticket or a claim there. It is *staged* between its INIT ticket and its run claim.
"""
