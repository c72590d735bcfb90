"""vLLM's own unit tests over our memory: a pytest plugin for the folder that holds them.

Their modules make managers, schedulers and models by name. Once they are collected, these names
stand for ours:

    KVCacheManager              -> FacadeManager: HybridCacheManager, and its pages as vLLM's blocks
    Scheduler, AsyncScheduler   -> HybridScheduler, AsyncHybridScheduler
    ModelConfig                 -> one of a small model, so that nothing is downloaded

A test that was written for attention alone gets a state beside it, with a boundary at the end of
every block. Nothing is drafted. `stock` runs vLLM's own schedulers in the same place, over the same
two groups: what fails there as well is what the test expects of attention alone.
"""

import json
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from peer_listing import ORGANIZATIONS, Listing, Organization
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast
from vllm.config import ModelConfig, VllmConfig
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import BlockHash, make_block_hash_with_group_id
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
)
from vllm.v1.request import Request

from hsexp.engine.manager import NULL_ID, HybridCacheManager
from hsexp.engine.plugin import register
from hsexp.engine.scheduler import AsyncHybridScheduler, HybridScheduler
from hsexp.engine.settings import EngineSettings
from hsexp.memory import HybridMemory
from hsexp.memory.checkpoint import Checkpoint
from hsexp.memory.chunking import chunking
from hsexp.memory.geometry import ModelConfig as ModelShape
from hsexp.memory.geometry import StateGeometry
from hsexp.memory.organizations import OrganizationConfig
from hsexp.memory.organizations.d0 import D0Config
from hsexp.memory.organizations.s0 import S0Config
from hsexp.memory.organizations.s1 import S1Config
from hsexp.memory.organizations.s2 import S2Config
from hsexp.memory.policies.admission import AdmissionConfig
from hsexp.memory.policies.eviction.paper import ReleaseOrder
from hsexp.memory.policies.pinning import PinningConfig
from hsexp.memory.policies.retention import DemandedRetention

TESTS = "tests/v1/core/"
"""Where the tests are, below pytest's root."""

VLLM_ORDER = ReleaseOrder(
    hashed="tail",
    plain_attention="head",
    plain_representative="head",
    plain_members="tail",
    idle_slab="head",
)


@dataclass
class _Used:
    """What the running test has made and asked in vLLM's stead."""

    count: int = 0
    memories: list[HybridMemory] = field(default_factory=list)


used = _Used()

# -- sizes -----------------------------------------------------------------------------------------


def model_shape(block_size: int) -> ModelShape:
    """A model whose state takes three pages of a block: 512 B of KV a token, three heads of a page.

    A convolution state is smaller than a page for every block size, one token included.
    """
    return ModelShape(
        name="peer",
        num_attention_layers=1,
        num_recurrent_layers=1,
        num_kv_heads=1,
        head_dim=128,
        ssm_heads=3,
        ssm_head_dim=64,
        d_state=4 * block_size,
        ssm_groups=1,
        conv_width=2,
        dtype_bytes=2,
        max_model_tokens=1 << 20,
        d0_attention_fraction=0.5,
    )


def engine_settings(
    organization: str, *, num_blocks: int, block_size: int, grid: int, cap: int = 1024
) -> EngineSettings:
    """An organization whose pool of attention has exactly so many pages, the null page included.

    It has neither reserve nor headroom, as vLLM's tests. D0's states have a pool of their own,
    which no test can exhaust; the others take them from the same pages.
    """
    shape = model_shape(block_size)
    geometry = StateGeometry.of(shape)
    common: dict[str, Any] = {
        "kind": organization,
        "name": organization,
        "block_size": block_size,
        "reserve_fraction": 0.0,
        "num_admission_states": 1,
        "release_order": VLLM_ORDER,
        "checkpoint_grid": grid,
    }
    config: OrganizationConfig
    page_bytes = block_size * geometry.kv_token_bytes
    budget_bytes = num_blocks * page_bytes
    match organization:
        case "s0":
            config = S0Config(**common)
            budget_bytes = num_blocks * geometry.composite_bytes
        case "s1":
            config = S1Config(**common)
        case "s2":
            config = S2Config(**common, slot_bytes=geometry.conv_bytes)
        case _:
            # A state for every block that can be cached, and for what runs.
            num_states = num_blocks + 2 * cap
            budget_bytes += num_states * geometry.composite_bytes
            fraction = (num_blocks + 0.5) * page_bytes / budget_bytes
            config = D0Config(**common, checkpoint_multiple=grid, attention_fraction=fraction)
    settings = EngineSettings(
        model=shape,
        organization=config,
        budget_bytes=budget_bytes,
        admission=AdmissionConfig(headroom=0.0, cap=cap),
        retention=DemandedRetention(name="off", requesters=None),
        pinning=PinningConfig(name="off", requesters=None, protected_fraction=0.0),
    )
    assert settings.plan.pools[0].num_pages == num_blocks
    return settings


# -- our pages as vLLM's blocks --------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """A page as vLLM's KVCacheBlock: what it holds now is read when it is asked for."""

    view: "PoolView"
    block_id: int

    @property
    def ref_cnt(self) -> int:
        return self.view.pool.refs[self.block_id]

    @property
    def is_null(self) -> bool:
        return self.block_id == NULL_ID

    @property
    def _entry(self) -> Any:
        return self.view.pool.entries[self.block_id]

    @property
    def block_hash(self) -> Any:
        entry = self._entry
        key = entry.key if isinstance(entry, Checkpoint) else entry
        if not isinstance(key, bytes):
            return None
        return make_block_hash_with_group_id(BlockHash(key), self.view.group)

    @property
    def block_hash_num_tokens(self) -> int:
        """Tokens that a cached state covers."""
        tokens: int = self._entry.tokens
        return tokens


class _End:
    """An end of vLLM's list of free blocks."""

    next_free_block: Any = None
    prev_free_block: Any = None


class PoolView:
    """A pool of one kind of state, as vLLM's BlockPool."""

    def __init__(self, manager: HybridCacheManager, *, group: int, is_attention: bool) -> None:
        cache = manager.memory.cache
        self.group = group
        self.pool = cache.attention_pool if is_attention else cache.states.pool
        self._index: Any = cache.block_index if is_attention else cache.checkpoint_index
        self.num_gpu_blocks = self.pool.spec.num_pages
        self.blocks = [Block(self, page) for page in range(self.num_gpu_blocks)]
        self.null_block = self.blocks[NULL_ID]
        self.free_block_queue = self
        self._head, self._tail = _End(), _End()

    def of(self, pages: Sequence[int]) -> list[Block]:
        return [self.blocks[page] for page in pages]

    @property
    def num_free_blocks(self) -> int:
        return self.pool.num_free

    def get_num_free_blocks(self) -> int:
        return self.pool.num_free

    def get_all_free_blocks(self) -> list[Block]:
        return self.of(list(self.pool.free_pages()))

    @property
    def fake_free_list_head(self) -> "_End":
        """vLLM's queue is a linked list between two ends, which a test sees joined."""
        free = self.get_all_free_blocks()
        self._head.next_free_block = free[0] if free else self._tail
        return self._head

    @property
    def fake_free_list_tail(self) -> "_End":
        free = self.get_all_free_blocks()
        self._tail.prev_free_block = free[-1] if free else self._head
        return self._tail

    @property
    def cached_block_hash_to_block(self) -> dict[Any, Any]:
        return dict(self._index.oldest)


class _Held(Mapping[str, list[Block]]):
    """Blocks of one group by running request."""

    def __init__(self, manager: HybridCacheManager, view: PoolView) -> None:
        self._manager, self._view = manager, view

    def __getitem__(self, request_id: str) -> list[Block]:
        return self._view.of(self._manager.get_block_ids(request_id)[self._view.group])

    def __iter__(self) -> Iterator[str]:
        return iter(self._manager._running)

    def __len__(self) -> int:
        return len(self._manager._running)


def show_blocks(manager: Any, *, attention_group: int) -> None:
    """Give the manager the parts of vLLM's that its tests look into."""
    views = [
        PoolView(manager, group=group, is_attention=group == attention_group) for group in (0, 1)
    ]
    managers = [SimpleNamespace(req_to_blocks=_Held(manager, view)) for view in views]
    for one in managers:
        one.num_cached_block = one.req_to_blocks
    used.memories.append(manager.memory)
    manager.block_pool = views[attention_group]
    manager.coordinator = SimpleNamespace(single_type_managers=managers)


# -- KVCacheManager --------------------------------------------------------------------------------


class FacadeManager:
    """`HybridCacheManager` behind the constructor and the answers of vLLM's KVCacheManager.

    A lookup starts a step, since what a step computes is not read in the same step. Chunks that no
    scheduler cut end at every boundary; those of a configuration that aligns states are as given.
    """

    organization = "d0"

    def __init__(
        self,
        kv_cache_config: KVCacheConfig,
        max_model_len: int,
        scheduler_block_size: int,
        hash_block_size: int,
        enable_caching: bool = True,
        log_stats: bool = False,
        use_eagle: bool = False,
        **others: Any,
    ) -> None:
        if others:
            raise NotImplementedError(f"the facade does not have {sorted(others)}")
        used.count += 1
        self.kv_cache_config = kv_cache_config
        specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
        attention = [i for i, spec in enumerate(specs) if isinstance(spec, AttentionSpec)]
        states = [spec for spec in specs if isinstance(spec, MambaSpec)]
        assert len(attention) == 1 and len(states) <= 1 and len(specs) <= 2
        block_size = specs[attention[0]].block_size
        self.num_groups, (self.attention_group,) = len(specs), attention
        self.is_cut = not states or states[0].mamba_cache_mode != "align"
        settings = engine_settings(
            self.organization,
            num_blocks=kv_cache_config.num_blocks,
            block_size=block_size,
            grid=states[0].block_size if states else block_size,
            cap=64,
        )
        group: Literal[0, 1] = 0 if self.attention_group == 0 else 1
        self.inner = HybridCacheManager(
            settings.memory(),
            settings.chunking,
            hash_block_size=hash_block_size,
            attention_group=group,
            enable_caching=enable_caching,
            log_stats=log_stats,
        )
        self.grid = self.inner.memory.checkpoint_grid
        show_blocks(self.inner, attention_group=self.attention_group)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def _blocks(self, attention: Sequence[int], states: Sequence[int]) -> KVCacheBlocks:
        ids = [attention, states] if self.attention_group == 0 else [states, attention]
        managers = self.inner.coordinator.single_type_managers
        views = [managers[group].req_to_blocks._view for group in range(self.num_groups)]
        return KVCacheBlocks(tuple(view.of(ids[view.group]) for view in views))

    def _table(self, request: Request) -> tuple[Sequence[int], Sequence[int]]:
        ids = self.inner.get_block_ids(request.request_id)
        return ids[self.attention_group], ids[1 - self.attention_group]

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int, int]:
        self.inner.new_step_starts()
        _, tokens, junction = self.inner.get_computed_blocks(request)
        looked_up = self.inner._looked_up
        assert looked_up is not None
        hit = looked_up.hit
        states: list[int] = []
        if hit.checkpoint is not None:
            states = [NULL_ID] * (tokens // self.grid - 1) + [hit.checkpoint.pages[0]]
        return self._blocks(list(hit.blocks), states), tokens, junction

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
        full_sequence_must_fit: bool = False,
    ) -> KVCacheBlocks | None:
        known = request.request_id in self.inner._running
        num_attention = num_states = 0
        start = request.num_computed_tokens
        if known:
            num_attention, num_states = map(len, self._table(request))
        else:
            looked_up = self.inner._looked_up
            if looked_up is None or looked_up.request_id != request.request_id:
                self.get_computed_blocks(request)
                looked_up = self.inner._looked_up
            assert looked_up is not None
            start = looked_up.hit.tokens
            assert start == num_new_computed_tokens
            num_attention, num_states = start // self.inner.memory.block_size, start // self.grid
        stood_at = request.num_computed_tokens
        try:
            for chunk_start, chunk_end in self._chunks(start, start + num_new_tokens):
                if known:
                    request.num_computed_tokens = chunk_start
                if self.inner.allocate_slots(request, chunk_end - chunk_start) is None:
                    return None
                self.inner.new_step_starts()
                known = True
        finally:
            request.num_computed_tokens = stood_at
        attention, states = self._table(request)
        return self._blocks(attention[num_attention:], states[num_states:])

    def _chunks(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        while self.is_cut and (boundary := (start // self.grid + 1) * self.grid) < end:
            yield start, boundary
            start = boundary
        yield start, end

    def get_blocks(self, request_id: str) -> KVCacheBlocks:
        ids = self.inner.get_block_ids(request_id)
        return self._blocks(ids[self.attention_group], ids[1 - self.attention_group])


# -- schedulers ------------------------------------------------------------------------------------


def two_groups(config: KVCacheConfig) -> KVCacheConfig:
    """The test's attention group, and one of states on the same grid."""
    (group,) = config.kv_cache_groups
    block_size = group.kv_cache_spec.block_size
    states = MambaSpec(
        block_size=block_size,
        shapes=((1, 1),),
        dtypes=(torch.float32,),
        mamba_cache_mode="align",
    )
    assert isinstance(group.kv_cache_spec, FullAttentionSpec)
    return KVCacheConfig(
        num_blocks=config.num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[group, KVCacheGroupSpec(["states"], states)],
    )


class _StockOverStates(Scheduler):
    """vLLM's scheduler, over attention and states."""

    def __init__(
        self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, *args: Any, **kwargs: Any
    ) -> None:
        used.count += 1
        vllm_config.cache_config.mamba_cache_mode = "align"
        super().__init__(vllm_config, two_groups(kv_cache_config), *args, **kwargs)


class _StockOverStatesAsync(_StockOverStates, AsyncScheduler):
    pass


class _Ours(HybridScheduler):
    """Our scheduler, with settings of the size that the test asks for."""

    organization = "d0"

    def __init__(
        self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, *args: Any, **kwargs: Any
    ) -> None:
        used.count += 1
        vllm_config.cache_config.mamba_cache_mode = "align"
        block_size = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        settings = engine_settings(
            self.organization,
            num_blocks=kv_cache_config.num_blocks,
            block_size=block_size,
            grid=block_size,
            cap=vllm_config.scheduler_config.max_num_seqs,
        )
        vllm_config.additional_config = settings.additional_config()
        super().__init__(vllm_config, two_groups(kv_cache_config), *args, **kwargs)
        show_blocks(self.kv_cache_manager, attention_group=0)

    def _mamba_block_aligned_split(
        self, request: Request, num_new_tokens: int, *args: Any, **kwargs: Any
    ) -> int:
        """The tests of the split pass an object that has only vLLM's fields."""
        if isinstance(self, SimpleNamespace):
            used.count += 1
            rule = chunking(
                block_size=self.hash_block_size,
                checkpoint_grid=self.cache_config.block_size,
                exact=False,
            )
            self._chunk_tokens, self._forks = rule.tokens, None
            self._stops = lambda request: ()
        return HybridScheduler._mamba_block_aligned_split(
            self, request, num_new_tokens, *args, **kwargs
        )


class _OursAsync(_Ours, AsyncHybridScheduler):
    pass


# -- models ----------------------------------------------------------------------------------------

MAX_TOKENS = {"facebook/opt-125m": 2048}
"""Longest sequence of the models that the tests name; others have more than any test asks for."""


class LocalModels:
    """Configurations of a small model, under the names that the tests ask for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, model: str, **kwargs: Any) -> ModelConfig:
        folder = self._folder / model.replace("/", "--")
        if not folder.exists():
            folder.mkdir()
            self._write(folder, MAX_TOKENS.get(model, 1 << 17))
        return ModelConfig(model=str(folder), tokenizer=str(folder), **kwargs)

    def _write(self, folder: Path, max_tokens: int) -> None:
        shape = {
            "architectures": ["OPTForCausalLM"],
            "model_type": "opt",
            "hidden_size": 64,
            "word_embed_proj_dim": 64,
            "ffn_dim": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "vocab_size": 50272,
            "max_position_embeddings": max_tokens,
            "torch_dtype": "float16",
        }
        (folder / "config.json").write_text(json.dumps(shape))
        words = Tokenizer(WordLevel({"a": 0}, unk_token="a"))
        PreTrainedTokenizerFast(tokenizer_object=words, eos_token="a").save_pretrained(folder)


def without_images(create: Any) -> Any:
    """The random requests of the priority test, as text."""

    def _create_random_request(**kwargs: Any) -> Request:
        request: Request = create(**kwargs | {"num_mm_item_range": (0, 0)})
        return request

    return _create_random_request


# -- the plugin ------------------------------------------------------------------------------------


def substitutes(organization: Organization, folder: Path) -> dict[str, Any]:
    """What stands for vLLM's classes, by name."""
    models = {"ModelConfig": LocalModels(folder)}
    if organization == "stock":
        return models | {"Scheduler": _StockOverStates, "AsyncScheduler": _StockOverStatesAsync}
    FacadeManager.organization = _Ours.organization = organization
    return models | {
        "KVCacheManager": FacadeManager,
        "Scheduler": _Ours,
        "AsyncScheduler": _OursAsync,
    }


class Peer:
    """Leaves out what does not apply, puts ours in place of vLLM's, and writes what came of it."""

    def __init__(self, organization: Organization, path: Path) -> None:
        self._organization = organization
        self._path = path
        self._modules = Listing.read().modules
        self._collected: list[str] = []
        self._outcomes: dict[str, dict[str, Any]] = {}

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        kept, left_out = [], []
        for item in items:
            node = _node(item.nodeid)
            self._collected.append(node)
            module, _, test = node.partition("::")
            applies = self._modules[module].applies(test, self._organization)
            (kept if applies else left_out).append(item)
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept
        chosen = substitutes(self._organization, self._path.parent)
        for name in list(sys.modules):
            if name.startswith("tests.v1.core."):
                _put(sys.modules[name], chosen)

    def pytest_runtest_setup(self) -> None:
        used.count = 0
        used.memories = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        """A test that passes leaves books that balance."""
        result = yield
        for memory in used.memories:
            memory.check_integrity()
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._outcomes[_node(report.nodeid)] = {
                "passed": report.outcome == "passed",
                "num_made": used.count,
                "failure": report.longreprtext,
            }

    def pytest_sessionfinish(self) -> None:
        session = {"collected": self._collected, "outcomes": self._outcomes}
        self._path.write_text(json.dumps(session))


def _node(node_id: str) -> str:
    return node_id.removeprefix(TESTS)


def _put(module: ModuleType, chosen: dict[str, Any]) -> None:
    for name, substitute in chosen.items():
        if hasattr(module, name):
            setattr(module, name, substitute)
    create = getattr(module, "_create_random_request", None)
    if create is not None:
        module.__dict__["_create_random_request"] = without_images(create)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--organization", choices=ORGANIZATIONS, required=True)
    parser.addoption("--outcomes", type=Path, required=True, help="file to write")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cpu_test: vLLM's own")
    register()
    peer = Peer(config.getoption("--organization"), config.getoption("--outcomes"))
    config.pluginmanager.register(peer, "peer")
