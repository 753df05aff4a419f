"""The timeline of one resource: who held it when, who took over from whom, and what the overtaken still tried to write.

Pure: from what the record has (``history``) over lanes (``lanes``) to a picture in numbers (``picture``) and sentences
(``words``). What reads the record is ``gateway.db.timeline``; what draws is a template.
"""
