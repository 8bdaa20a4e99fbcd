"""Code that opens a planned model without onnxremat."""

from __future__ import annotations

import json
from dataclasses import dataclass

from onnxremat.memory.arena import Region
from onnxremat.memory.session import SHARED, arena_settings
from onnxremat.ort.session import LEVELS, Options, config_entries

ORDER = "// The pins inside the model keep the planned order without further options."
LARGER = "onnxruntime's own pool keeps 1.2 to 2.3 times what is live"


@dataclass(frozen=True)
class Snippets:
    """What to open, and how.

    Attributes:
        path: of the model.
        region: an arena of chosen sizes (:func:`onnxremat.session.region.find_region`); None for
            onnxruntime's own pool.
    """

    path: str
    options: Options
    region: Region | None = None

    def by_language(self) -> dict[str, str]:
        """Python, C++, C#."""
        made = {"Python": self._python(), "C++": self._cpp(), "C#": self._csharp()}
        return {language: "\n".join(lines) for language, lines in made.items()}

    @property
    def _entries(self) -> list[str]:
        shared = {SHARED: "1"} if self.region else {}
        entries = {**config_entries(self.options), **shared}
        return [f'("{key}", "{value}")' for key, value in entries.items()]

    def _python(self) -> list[str]:
        options, level = self.options, LEVELS[self.options.level]
        lines = ["import onnxruntime as ort"]
        if self.region:
            lines += [
                f"arena = ort.OrtArenaCfg({json.dumps(arena_settings(self.region))})",
                "kind = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR",
                'memory = ort.OrtMemoryInfo("Cpu", kind, 0, ort.OrtMemType.DEFAULT)',
                "ort.create_and_register_allocator(memory, arena)",
            ]
        else:
            lines += [f"# {LARGER}: onnxremat.load({self.path!r}) holds what is live."]
        lines += [
            "options = ort.SessionOptions()",
            f"options.graph_optimization_level = ort.GraphOptimizationLevel.{level}",
        ]
        if options.order == "priority":
            lines.append("options.execution_order = ort.ExecutionOrder.PRIORITY_BASED")
        opened = f'{self.path!r}, options, providers=["CPUExecutionProvider"]'
        return [
            *lines,
            f"options.enable_mem_pattern = {options.pattern}",
            f"options.enable_mem_reuse = {options.reuse}",
            f"options.enable_cpu_mem_arena = {options.arena}",
            *(f"options.add_session_config_entry{entry}" for entry in self._entries),
            f"session = ort.InferenceSession({opened})",
        ]

    def _cpp(self) -> list[str]:
        options, level = self.options, LEVELS[self.options.level]
        lines = ["Ort::Env env;"]
        if self.region:
            settings = arena_settings(self.region)
            lines += [
                f"const char* keys[] = {{{', '.join(json.dumps(key) for key in settings)}}};",
                f"const size_t sizes[] = {{{', '.join(map(str, settings.values()))}}};",
                "OrtArenaCfg* arena = nullptr;",
                "Ort::ThrowOnError(Ort::GetApi().CreateArenaCfgV2(keys, sizes, "
                f"{len(settings)}, &arena));",
                "env.CreateAndRegisterAllocator(",
                "    Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault), arena);",
                "Ort::GetApi().ReleaseArenaCfg(arena);",
            ]
        else:
            lines += [f"// {LARGER}: onnxremat inspect --region finds the least arena."]
        pattern = "EnableMemPattern" if options.pattern else "DisableMemPattern"
        arena = "EnableCpuMemArena" if options.arena else "DisableCpuMemArena"
        return [
            *lines,
            "Ort::SessionOptions options;",
            f"options.SetGraphOptimizationLevel(GraphOptimizationLevel::{level});",
            f"options.{pattern}();",
            f"options.{arena}();",
            *(f"options.AddConfigEntry{entry};" for entry in self._entries),
            ORDER,
            f"Ort::Session session(env, ORT_TSTR({self._quoted}), options);",
        ]

    def _csharp(self) -> list[str]:
        options, level = self.options, LEVELS[self.options.level]
        entries = [f'("{key}", "{value}")' for key, value in config_entries(options).items()]
        return [
            f"// {LARGER}.",
            "// EnableCpuMemArena = false holds what is live, in up to twice the time.",
            "using var options = new SessionOptions();",
            f"options.GraphOptimizationLevel = GraphOptimizationLevel.{level};",
            f"options.EnableMemoryPattern = {str(options.pattern).lower()};",
            f"options.EnableCpuMemArena = {str(options.arena).lower()};",
            *(f"options.AddSessionConfigEntry{entry};" for entry in entries),
            ORDER,
            f"using var session = new InferenceSession({self._quoted}, options);",
        ]

    @property
    def _quoted(self) -> str:
        return json.dumps(self.path, ensure_ascii=False)
