"""The style of the page, by day, by night, on a phone and on paper."""

from __future__ import annotations

from temperance.show.report.figures import SHADES


def _variables(night: bool) -> str:
    return "".join(f"--plot-{name}:{shades[night]};" for name, shades in SHADES.items())


_DAY = (
    "--page:#ffffff;--card:#f5f7f9;--ink:#1c2128;--muted:#55606b;--line:#d5dbe1;--accent:#0a5a9c;--bar:#0072b2;"
    "--good:#0f6b4b;--bad:#a8321a;--unsure:#7a5600;--warn:#fff4dc;--warn-line:#c98a00;"
)
_NIGHT = (
    "--page:#11161b;--card:#1a2128;--ink:#e8ecf1;--muted:#aab4c0;--line:#36404b;--accent:#7cc0f5;--bar:#5cb3ea;"
    "--good:#5fd6a8;--bad:#ff9a80;--unsure:#e8c261;--warn:#2e2611;--warn-line:#c99a2e;"
)

STYLE = (
    f":root{{color-scheme:light dark;{_DAY}{_variables(False)}}}"
    f"@media (prefers-color-scheme:dark){{:root{{{_NIGHT}{_variables(True)}}}}}"
    """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.6 system-ui,-apple-system,"Segoe UI",Roboto,
 "Helvetica Neue",Arial,"Liberation Sans",sans-serif;overflow-wrap:break-word}
a{color:var(--accent)}
a:focus-visible,summary:focus-visible,.scroll:focus-visible{outline:3px solid var(--accent);outline-offset:2px}
.skip{position:absolute;left:-999rem}
.skip:focus{left:1rem;top:1rem;background:var(--page);padding:.5rem 1rem;z-index:2}
header,main,footer{max-width:66rem;margin:0 auto;padding:0 1rem}
header{padding-top:2.2rem}
h1{font-size:clamp(1.55rem,5vw,2.3rem);line-height:1.2;margin:0 0 .4rem;letter-spacing:-.01em}
h2{font-size:1.4rem;line-height:1.25;margin:0 0 .8rem}
h3{font-size:1.08rem;margin:1.6rem 0 .6rem}
h4{font-size:.98rem;margin:0 0 .3rem}
p{margin:0 0 .8rem;max-width:44rem}
.lead{color:var(--muted)}
nav ul{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;padding:.7rem 0;margin:1rem 0 0;
 border-top:1px solid var(--line);border-bottom:1px solid var(--line);font-size:.93rem}
nav a{display:inline-block;padding:.2rem 0;text-decoration:none}
nav a:hover{text-decoration:underline}
section{padding:1.8rem 0 .6rem}
section+section{border-top:1px solid var(--line)}
.tiles{list-style:none;margin:0 0 1.4rem;padding:0;display:grid;gap:.8rem;
 grid-template-columns:repeat(auto-fit,minmax(min(100%,9.6rem),1fr))}
.tiles li{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:.9rem 1rem}
.tiles p{margin:0}
.tiles .value{font-size:clamp(1.4rem,5vw,1.75rem);font-weight:650;line-height:1.25;font-variant-numeric:tabular-nums}
.tiles .label{font-weight:600;font-size:.95rem}
.tiles .note,.note{color:var(--muted);font-size:.9rem}
.summary{padding-left:1.2rem;max-width:46rem;margin:0}
.summary li{margin:0 0 .55rem}
.caution{background:var(--warn);border-left:5px solid var(--warn-line);border-radius:6px;padding:.8rem 1rem;
 margin:0 0 1.2rem;max-width:none}
.figures{display:grid;gap:1.6rem 2rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,25rem),1fr));
 align-items:start}
.figures>div{min-width:0}
figure{margin:0;min-width:0}
.plot{display:block;width:100%;height:auto;max-width:34rem}
.plot *{stroke-linejoin:round;stroke-linecap:butt}
.plot text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,"Liberation Sans",
 sans-serif!important}
figcaption{color:var(--muted);font-size:.93rem;margin:.4rem 0 .5rem;max-width:34rem}
details{margin:.3rem 0 .8rem;max-width:100%}
summary{cursor:pointer;color:var(--accent);font-size:.93rem;padding:.15rem 0}
.scroll{overflow-x:auto;max-width:100%}
table{border-collapse:collapse;font-size:.93rem;margin:.3rem 0 .8rem;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--muted);font-size:.9rem;padding:0 0 .3rem}
th,td{text-align:left;vertical-align:top;padding:.36rem 1rem .36rem 0;border-bottom:1px solid var(--line)}
thead th{color:var(--muted);font-weight:600;white-space:nowrap}
tbody th{font-weight:600}
.wide table{width:100%}
.hidden{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
.cards{list-style:none;margin:0;padding:0;display:grid;gap:.8rem;
 grid-template-columns:repeat(auto-fill,minmax(min(100%,14.5rem),1fr))}
.cards>li{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:.8rem .9rem;min-width:0}
.cards img{display:block;width:6rem;height:6rem;object-fit:contain;image-rendering:pixelated;background:#000;
 border-radius:6px;margin:0 0 .5rem}
.cards p{margin:0 0 .3rem;font-size:.93rem}
.bars{list-style:none;margin:.3rem 0;padding:0;font-size:.9rem;display:grid;gap:.1rem .6rem;align-items:center;
 grid-template-columns:fit-content(9rem) minmax(2rem,1fr) auto}
.bars li{display:contents}
.bars .name{overflow-wrap:anywhere}
.bars .track{height:.62rem;background:var(--line);border-radius:3px;overflow:hidden}
.bars .fill{display:block;height:100%;background:var(--bar);min-width:1px}
.bars .much{text-align:right;font-variant-numeric:tabular-nums}
dl{display:grid;grid-template-columns:minmax(0,1.7fr) minmax(0,1fr);gap:.1rem .7rem;margin:.4rem 0 0;font-size:.88rem}
dt{color:var(--muted);overflow-wrap:anywhere}
dd{margin:0;text-align:right;overflow-wrap:anywhere;font-variant-numeric:tabular-nums}
.good,.bad,.unsure{font-weight:600}
.good{color:var(--good)}.bad{color:var(--bad)}.unsure{color:var(--unsure)}
pre,code{font:.86rem/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
pre{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.8rem 1rem;overflow-x:auto;
 white-space:pre-wrap;overflow-wrap:anywhere}
td code{overflow-wrap:anywhere}
footer{color:var(--muted);font-size:.9rem;padding-top:1rem;padding-bottom:2.5rem;border-top:1px solid var(--line)}
@media (max-width:30rem){th,td{padding-right:.7rem}.cards{grid-template-columns:1fr}
 .stack table,.stack tbody,.stack tr,.stack th,.stack td{display:block;border:0;padding:0}
 .stack tr{padding:.45rem 0;border-bottom:1px solid var(--line)}
 .stack thead{position:absolute;clip-path:inset(50%);width:1px;height:1px;overflow:hidden}}
@media print{
 :root{"""
    + _DAY
    + _variables(False)
    + """}
 nav,.skip{display:none}body{font-size:11pt}section{break-inside:auto}figure,.cards>li,.tiles li,tr{break-inside:avoid}
 details:not([open])>summary{display:none}a{color:inherit;text-decoration:none}}
"""
)
