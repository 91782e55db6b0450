"""Remarks about a patient that matter to no disease, as in ProMed's own noise test.

They are in both languages.
"""

from __future__ import annotations

ENGLISH = (
    "The patient was born under the sign of Aquarius.",
    "The patient has brown hair.",
    "The patient prefers tea to coffee.",
    "The patient's favourite colour is green.",
    "The patient came by bus today.",
    "The patient has a brother who is a teacher.",
    "The patient plays chess on Sundays.",
    "The patient lives on the second floor.",
    "The patient owns two umbrellas.",
    "The patient's shoe size is 41.",
    "The patient likes films about ships.",
    "The patient speaks a little Spanish.",
    "The patient's phone has a blue cover.",
    "The patient learned the piano at school.",
    "The patient's street is lined with trees.",
    "The patient collects stamps.",
)
CHINESE = (
    "患者是水瓶座。",
    "患者的头发是棕色的。",
    "患者喜欢喝茶多过喝咖啡。",
    "患者最喜欢的颜色是绿色。",
    "患者今天是乘公交车来的。",
    "患者的哥哥是一名教师。",
    "患者星期天下象棋。",
    "患者住在二楼。",
    "患者有两把雨伞。",
    "患者穿41码的鞋。",
    "患者喜欢看关于轮船的电影。",
    "患者会说一点西班牙语。",
    "患者的手机壳是蓝色的。",
    "患者上学时学过钢琴。",
    "患者家门前的街上种着树。",
    "患者集邮。",
)
