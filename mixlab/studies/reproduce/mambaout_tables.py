"""The figures of MambaOut's Tables 1 to 3, row by row; "-" where the paper has none."""

# model, parameters (M), MACs (G), ImageNet top-1 (per cent)
_TABLE_1 = """
VAN-B0 4 0.9 75.4; FasterNet-T1 8 0.9 76.2; InceptionNeXt-A 4 0.5 75.3; DeiT-Ti 6 1.3 72.2
T2T-ViT-7 4 1.1 71.7; PVTv2-B0 3 0.6 70.5; MobileViTv3-XS 3 0.9 76.7; EMO-6M 6 1.0 79.0
Vim-Ti 7 1.5 76.1; LocalVim-T 8 1.5 76.2; EfficientVMamba-T 6 0.8 76.5; EfficientVMamba-S 11 1.3 78.7
MambaOut-Femto 7 1.2 78.9; PoolFormer-S24 21 3.4 80.3; ConvNeXt-T 29 4.5 82.1; VAN-B2 27 5.0 82.8
ConvFormer-S18 27 3.9 83.0; InternImage-T 30 5 83.5; InceptionNeXt-T 28 4.2 82.3; DeiT-S 22 4.6 79.8
T2T-ViT-14 22 4.8 81.5; Swin-T 29 4.5 81.3; Focal-Tiny 29 4.9 82.2; CSWin-T 23 4.3 82.7
CoAtNet-0 25 4.2 81.6; iFormer-S 20 4.8 83.4; CAFormer-S18 26 4.1 83.6; SG-Former-S 23 4.8 83.2
TransNeXt-Tiny 28 5.7 84.0; Vim-S 26 5.1 80.5; VMamba-T 22 5.6 82.2; Mamba-2D-S 24 - 81.7
LocalVim-S 28 4.8 81.2; LocalVMamba-T 26 5.7 82.7; EfficientVMamba-B 33 4.0 81.8; PlainMamba-L1 7 3.0 77.9
VMambaV9-T 31 4.9 82.5; MambaOut-Tiny 27 4.5 82.7; ConvNeXt-S 50 8.7 83.1; VAN-B3 45 9.0 83.9
ConvFormer-S36 40 7.6 84.1; InternImage-S 50 8 84.2; T2T-ViT-19 39 8.5 81.9; Swin-S 50 8.7 83.0
Focal-Small 51 9.1 83.5; CSWin-S 35 6.9 83.6; MViTv2-S 35 7.0 83.6; CoAtNet-1 42 8.4 83.3
UniFormer-B 50 8.3 83.9; CAFormer-S36 39 8.0 84.5; SG-Former-M 39 7.5 84.1; TransNeXt-Small 50 10.3 84.7
VMamba-S 44 11.2 83.5; LocalVMamba-S 50 11.4 83.7; PlainMamba-L2 25 8.1 81.6; VMambaV9-S 50 8.7 83.6
MambaOut-Small 48 9.0 84.1; ConvNeXt-B 89 15.4 83.8; RepLKNet-31B 79 15.3 83.5; ConvFormer-M36 57 12.8 84.5
HorNet-B 88 15.5 84.3; InternImage-B 97 16 84.9; DeiT-B 86 17.5 81.8; T2T-ViT-24 64 13.8 82.3
Swin-B 88 15.4 83.5; CSWin-B 78 15.0 84.2; MViTv2-B 52 10.2 84.4; CoAtNet-2 75 15.7 84.1
iFormer-L 87 14.0 84.8; CAFormer-M36 56 13.2 85.2; TransNeXt-Base 90 18.4 84.8; VMamba-B 75 18.0 83.7
Mamba-2D-B 92 - 83.0; PlainMamba-L3 50 14.4 82.3; VMambaV9-B 89 15.4 83.9; MambaOut-Base 85 15.8 84.2
"""

# backbone, parameters (M) and MACs (G) of the whole detector, AP of boxes, 50, 75, AP of masks, 50, 75
_TABLE_2 = """
ConvNeXt-T 48 262 44.2 66.6 48.3 40.1 63.3 42.8; FocalNet-T 49 268 46.1 68.2 50.6 41.5 65.1 44.5
Swin-T 48 267 42.7 65.2 46.8 39.3 62.2 42.2; ViT-Adapter-S 48 403 44.7 65.8 48.3 39.9 62.5 42.8
CSWin-T 42 279 46.7 68.6 51.3 42.2 65.6 45.4; PVTv2-B2 45 309 45.3 67.1 49.6 41.2 64.2 44.4
SG-Former-S 41 - 47.4 69.0 52.0 42.6 65.9 46.0; TransNeXt-Tiny 48 - 49.9 71.5 54.9 44.6 68.6 48.1
VMamba-T 42 286 46.5 68.5 50.7 42.1 65.5 45.3; LocalVMamba-T 45 291 46.7 68.7 50.8 42.2 65.7 45.5
EfficientVMamba-B 53 252 43.7 66.2 47.9 40.2 63.3 42.9; VMambaV9-T 50 270 47.4 69.5 52.0 42.7 66.3 46.0
MambaOut-Tiny 43 262 45.1 67.3 49.6 41.0 64.1 44.1; ConvNeXt-S 70 348 45.4 67.9 50.0 41.8 65.2 45.1
FocalNet-S 72 365 48.3 70.5 53.1 43.1 67.4 46.2; Swin-S 69 354 44.8 66.6 48.9 40.9 63.2 44.2
CSWin-S 54 342 47.9 70.1 52.6 43.2 67.1 46.2; PVTv2-B3 65 397 47.0 68.1 51.7 42.5 65.7 45.7
SG-Former-M 51 - 48.2 70.3 53.1 43.6 66.9 47.0; TransNeXt-Small 69 - 51.1 72.6 56.2 45.5 69.8 49.1
VMamba-S 64 400 48.2 69.7 52.5 43.0 66.6 46.4; LocalVMamba-S 69 414 48.4 69.9 52.7 43.2 66.7 46.5
PlainMamba-L1 31 388 44.1 64.8 47.9 39.1 61.6 41.9; VMambaV9-S 64 357 48.7 70.0 53.4 43.7 67.3 47.0
MambaOut-Small 65 354 47.4 69.1 52.4 42.7 66.1 46.2; ConvNeXt-B 108 486 47.0 69.4 51.7 42.7 66.3 46.0
FocalNet-B 111 507 49.0 70.9 53.9 43.5 67.9 46.7; Swin-B 107 496 46.9 - - 42.3 - -
ViT-Adapter-B 102 557 47.0 68.2 51.4 41.8 65.1 44.9; CSWin-B 97 526 48.7 70.4 53.9 43.9 67.8 47.3
PVTv2-B5 102 557 47.4 68.6 51.9 42.5 65.7 46.0; TransNeXt-Base 109 - 51.7 73.2 56.9 45.9 70.5 49.7
VMamba-B 96 540 48.5 69.6 53.0 43.1 67.0 46.4; PlainMamba-L2 53 542 46.0 66.9 50.1 40.6 63.8 43.6
VMambaV9-B 108 485 49.2 70.9 53.9 43.9 67.7 47.6; MambaOut-Base 100 495 47.4 69.3 52.2 43.0 66.4 46.3
"""

# backbone, parameters (M) and MACs (G) of the whole network, mIoU on one scale, mIoU on several
_TABLE_3 = """
ConvNeXt-T 60 939 46.0 46.7; HorNet-T 55 924 49.2 49.3; ConvFormer-S18 54 925 47.5 48.6
InternImage-T 59 944 47.9 48.1; Swin-T 60 945 44.4 45.8; Twins-S 54 901 46.2 47.1
Focal-T 62 998 45.8 47.0; CSWin-T 60 959 49.3 50.7; UniFormer-S 52 955 47.0 48.5
CAFormer-S18 54 1024 48.1 48.9; SG-Former-S 53 989 49.9 51.5; TransNeXt-Tiny 59 - 51.1 51.7
VMamba-T 55 964 47.3 48.3; LocalVMamba-T 57 970 47.9 49.1; EfficientVMamba-B 65 930 46.5 47.3
PlainMamba-L2 55 285 - 46.8; PlainMamba-L3 81 419 - 49.1; VMambaV9-T 62 948 48.3 48.6
MambaOut-Tiny 54 938 47.4 48.6; ConvNeXt-S 82 1027 48.7 49.6; HorNet-S 85 1027 50.0 50.5
ConvFormer-S36 67 1003 49.6 50.7; InternImage-S 80 1017 50.1 50.9; Swin-S 81 1038 47.6 49.5
Twins-B 89 1020 47.7 48.9; Focal-S 85 1130 48.0 50.0; CSWin-S 65 1027 50.4 51.5
CAFormer-S36 67 1197 50.6 50.8; SG-Former-M 68 1114 51.2 52.1; TransNeXt-Small 80 - 52.2 52.8
VMamba-S 76 1081 49.5 50.5; LocalVMamba-S 81 1095 50.0 51.0; VMambaV9-S 82 1039 50.6 51.2
MambaOut-Small 76 1032 49.5 50.6; ConvNeXt-B 122 1170 49.1 49.9; HorNet-B 126 1171 50.5 50.9
ConvFormer-M36 85 1113 50.4 51.3; InternImage-B 128 1185 50.8 51.3; Swin-B 121 1188 48.1 49.7
Twins-L 133 1164 48.8 50.2; Focal-B 126 1354 49.0 50.5; CSWin-B 110 1222 51.1 52.2
UniFormer-B 80 1106 49.5 50.7; CAFormer-M36 84 1346 51.7 51.7; SG-Former-B 109 1304 52.0 52.7
TransNeXt-Base 90 - 53.0 53.7; VMamba-B 110 1226 50.0 51.3; VMambaV9-B 122 1170 51.0 51.6
MambaOut-Base 112 1178 49.6 51.0
"""


def _read(text: str) -> dict[str, tuple[float | None, ...]]:
    rows = (row.split() for row in text.replace("\n", ";").split(";") if row.strip())
    return {name: tuple(None if value == "-" else float(value) for value in values) for name, *values in rows}


TABLE_1, TABLE_2, TABLE_3 = _read(_TABLE_1), _read(_TABLE_2), _read(_TABLE_3)
