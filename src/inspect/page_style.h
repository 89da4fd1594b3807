// The style sheet of the page.
#pragma once

#include <string_view>

namespace sluice {

inline constexpr std::string_view kPageStyle = R"(
:root{--paper:#fbfaf7;--card:#fff;--ink:#1d2733;--soft:#5d6b7a;--line:#e3e0d8;
--linear:#1f8a86;--attention:#dd8a2b;--mlp:#4f74b3;--experts:#7d5fae;--shared:#a88bcf;--embedding:#8a97a5;--head:#5f6b78;--norms:#c3b36a;--tables:#b9c0c7}
@media(prefers-color-scheme:dark){:root{--paper:#14191f;--card:#1c232b;--ink:#e6ebf0;--soft:#98a5b3;--line:#303a45;
--linear:#35aaa5;--attention:#e9a04c;--mlp:#6f93d2;--experts:#9d80cc;--shared:#c0a6e4;--embedding:#8593a1;--head:#a4b0bc;--norms:#cdbd75;--tables:#5a6571}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1120px;margin:0 auto;padding:36px 28px 60px}
header{border-bottom:3px solid var(--linear);padding-bottom:14px;margin-bottom:22px}
.kind{margin:0;color:var(--linear);font-weight:600;letter-spacing:.06em;text-transform:uppercase;font-size:12px}
h1{margin:2px 0 0;font-size:32px;letter-spacing:-.01em;overflow-wrap:anywhere}
.path{margin:2px 0 0;color:var(--soft);font-size:13px;overflow-wrap:anywhere}
h2{margin:0;font-size:20px}h3{margin:0 0 8px;font-size:15px}
section{margin-top:38px}.lead{margin:4px 0 14px;color:var(--soft);max-width:110ch}.lead:empty{display:none}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(215px,1fr));gap:12px}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 14px}
.card b{display:block;font-size:22px;letter-spacing:-.01em;overflow-wrap:anywhere}.card span{color:var(--soft);font-size:13px}
.draw{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px 18px 8px;margin-bottom:14px}
svg{display:block;width:100%;height:auto;font-size:13px}
.grid{stroke:var(--line);stroke-width:1}.tick{fill:var(--soft);font-size:12px}.label{fill:var(--ink)}
.middle{text-anchor:middle}.end{text-anchor:end}.inside{fill:#fff;font-weight:600}
.curve{fill:none;stroke-width:3;stroke-linecap:round}.kv{stroke:var(--attention)}.state{stroke:var(--linear)}
.ghost{stroke:var(--soft);stroke-width:2;stroke-dasharray:3 6}.mark{fill:var(--card);stroke:var(--ink);stroke-width:2}
.drop{stroke:var(--ink);stroke-dasharray:2 4;stroke-width:1}.seam{stroke:var(--card);stroke-width:1.5}
.fill-linear{fill:var(--linear);background:var(--linear)}.fill-attention{fill:var(--attention);background:var(--attention)}
.fill-mlp{fill:var(--mlp);background:var(--mlp)}.fill-experts{fill:var(--experts);background:var(--experts)}
.fill-shared_expert{fill:var(--shared);background:var(--shared)}.fill-embedding{fill:var(--embedding);background:var(--embedding)}
.fill-head{fill:var(--head);background:var(--head)}.fill-norms{fill:var(--norms);background:var(--norms)}
.fill-tables{fill:var(--tables);background:var(--tables)}.fill-none{background:transparent;border:1px dashed var(--soft)}
.swatch{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:8px;vertical-align:-1px}
.keys{margin:0 0 10px}.key{margin-right:20px;white-space:nowrap;font-size:14px}
.scroll{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:10px}
table{border-collapse:collapse;width:100%;font-size:14px}
th,td{text-align:left;padding:6px 14px;border-bottom:1px solid var(--line);white-space:nowrap}
tbody tr:last-child td{border-bottom:0}th{color:var(--soft);font-weight:600;font-size:13px}
.n{text-align:right;font-variant-numeric:tabular-nums}.sum td{font-weight:600}.off td{color:var(--soft)}
code{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,"DejaVu Sans Mono",monospace}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(230px,1fr));gap:0 26px;margin:0;background:var(--card);border:1px solid var(--line);border-radius:10px;padding:8px 18px}
dl div{display:flex;justify-content:space-between;gap:14px;padding:5px 0}dt{color:var(--soft)}dd{margin:0;font-weight:600;text-align:right}
.flows{display:grid;grid-template-columns:repeat(auto-fit,minmax(300px,1fr));gap:14px;align-items:start}
.flow{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 16px}
.flow ol{list-style:none;margin:0;padding:0}
.flow li{display:flex;justify-content:space-between;gap:12px;padding:6px 0 6px 14px;border-left:2px solid var(--line);margin-left:4px;font-size:14px}
.flow li span{flex:1 1 56%}.flow li code{color:var(--soft);text-align:right;flex:0 1 auto;max-width:46%}
.pills{display:flex;flex-wrap:wrap;gap:8px;margin:0}.pill{background:var(--card);border:1px solid var(--line);border-radius:99px;padding:3px 12px;font-size:14px}
.pill b{margin-left:8px;color:var(--linear)}
ul{margin:0;padding-left:20px}li{overflow-wrap:anywhere}
@media print{body{background:#fff}section{break-inside:avoid}}
)";

}  // namespace sluice
