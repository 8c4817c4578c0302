# SPDX-License-Identifier: Apache-2.0
"""State of the standard library's objects: contexts, threads, queues, logging, the environment."""

from __future__ import annotations

from soak.feature import Feature

_LOGGER = (
    "log$ = logging.getLogger('soak.a$')\nlog$.setLevel(logging.WARNING)\nlog$.propagate = False\n"
    "log$.handlers[:] = [logging.StreamHandler(sys.stdout)]"
)
_UNSET = "os.environ.pop('SOAK$', None)"


FEATURES = [
    Feature(
        "context variable",
        "c$_ = contextvars.ContextVar('c$_', default=2.0)",
        "c$_.get()",
        mutate=("c$_.set(3.0)", "c$_.set(c$_.get() + 1)"),
        write=("c$_.set(4.0)",),
        state=("c$_.get()",),
    ),
    Feature(
        "default of a context variable",
        "c$_ = contextvars.ContextVar('c$_', default=[2.0])",
        "c$_.get()[0]",
        mutate=("c$_.get()[0] = 3.0", "c$_.set([5.0])"),
        state=("c$_.get()",),
    ),
    Feature(
        "another context variable",
        "c$_ = contextvars.ContextVar('c$_', default=2.0)",
        "c$_.get()",
        mutate=("c$_ = contextvars.ContextVar('c$_', default=3.0)", "c$_.set(5.0)"),
    ),
    Feature(
        "context variable in a context",
        "c$_ = contextvars.ContextVar('c$_', default=2.0)",
        "contextvars.copy_context().run(c$_.get)",
        mutate=("c$_.set(3.0)",),
    ),
    Feature(
        "context variable reset",
        """
            c$_ = contextvars.ContextVar('c$_', default=2.0)
            def f$():
                t = c$_.set(5.0)
                try:
                    return c$_.get()
                finally:
                    c$_.reset(t)
            """,
        "f$() + c$_.get()",
        mutate=("c$_.set(3.0)",),
        state=("c$_.get()",),
    ),
    Feature(
        "event",
        "e$ = threading.Event()",
        "e$.is_set()",
        mutate=("e$.set()", "e$.clear()"),
        write=("e$.set()", "e$.clear()"),
        state=("e$.is_set()",),
    ),
    Feature(
        "lock", "l$ = threading.Lock()", "l$.locked()", mutate=("l$.acquire(blocking=False)",), state=("l$.locked()",)
    ),
    Feature(
        "lock held",
        "l$ = threading.Lock()\nv$ = 2.0\ndef f$():\n    with l$:\n        return v$",
        "f$()",
        mutate=("v$ = 3.0",),
        state=("l$.locked()",),
        entries=("function", "closure"),
    ),
    Feature(
        "reentrant lock held",
        "l$ = threading.RLock()\nv$ = 2.0\ndef f$():\n    with l$:\n        return v$",
        "f$()",
        mutate=("v$ = 3.0",),
        entries=("function", "closure"),
    ),
    Feature(
        "lock acquired",
        "l$ = threading.Lock()",
        "l$.acquire(blocking=False)",
        mutate=("l$.release() if l$.locked() else None",),
        state=("l$.locked()",),
    ),
    Feature(
        "thread local",
        "t$ = threading.local()\nt$.v = 2.0",
        "t$.v",
        mutate=("t$.v = 3.0", "t$.v += 1", "del t$.v"),
        write=("t$.v = 4.0", "t$.v += 1"),
        state=("t$.v",),
    ),
    Feature(
        "thread local absent",
        "t$ = threading.local()",
        "getattr(t$, 'v', 1.0)",
        mutate=("t$.v = 3.0",),
        write=("t$.v = 4.0",),
        state=("t$.__dict__",),
    ),
    Feature(
        "thread local subclass",
        "class T$(threading.local):\n    v = 2.0\nt$ = T$()",
        "t$.v",
        mutate=("t$.v = 3.0", "T$.v = 5.0"),
        state=("t$.v",),
    ),
    Feature(
        "semaphore",
        "s$ = threading.Semaphore(3)",
        "s$._value",
        mutate=("s$.acquire(blocking=False)", "s$.release()"),
        state=("s$._value",),
    ),
    Feature("barrier", "b$ = threading.Barrier(2)", "b$.parties + b$.n_waiting", mutate=("b$ = threading.Barrier(3)",)),
    Feature(
        "condition",
        "c$_ = threading.Condition()\nv$ = 1.0\ndef f$():\n    with c$_:\n        c$_.notify_all()\n        return v$",
        "f$()",
        mutate=("v$ = 2.0",),
        entries=("function", "closure"),
    ),
    Feature("thread", "t$ = threading.Thread(target=int, name='a')", "t$.name", mutate=("t$.name = 'bb'",)),
    Feature(
        "thread alive",
        "t$ = threading.Thread(target=int, name='t')",
        "t$.is_alive() or t$.ident is not None",
        mutate=("t$.start(); t$.join()",),
    ),
    Feature(
        "name of the current thread",
        "k$ = 1",
        "threading.current_thread().name",
        mutate=("threading.current_thread().name = 'b'",),
        undo="threading.current_thread().name = 'MainThread'",
        entries=("function",),
    ),
    Feature(
        "number of threads",
        "e$ = threading.Event()",
        "threading.active_count()",
        mutate=("t$ = threading.Thread(target=e$.wait, daemon=True); t$.start()",),
        undo="e$.set(); [t.join() for t in threading.enumerate() if t is not threading.current_thread()]",
        entries=("function",),
    ),
    Feature(
        "future",
        "f$ = concurrent.futures.Future()",
        "f$.done()",
        mutate=("f$.done() or f$.set_result(2.0)",),
        state=("f$.done()",),
    ),
    Feature(
        "result of a future",
        "f$ = concurrent.futures.Future()\nf$.set_result(2.0)",
        "f$.result()",
        mutate=("f$ = concurrent.futures.Future(); f$.set_result(3.0)",),
    ),
    Feature(
        "queue",
        "q$ = queue.Queue()\nfor q$_ in range(1, 16): q$.put(float(q$_))",
        "q$.get_nowait()",
        mutate=("q$.put(9.0)",),
        state=("list(q$.queue)",),
    ),
    Feature(
        "size of a queue",
        "q$ = queue.Queue()\nq$.put(1.0)",
        "q$.qsize()",
        mutate=("q$.put(2.0)", "q$.get_nowait()"),
        write=("q$.put(3.0)",),
        state=("list(q$.queue)",),
    ),
    Feature(
        "empty queue",
        "q$ = queue.Queue()",
        "q$.empty()",
        mutate=("q$.put(2.0)",),
        write=("q$.put(3.0)",),
        state=("q$.qsize()",),
    ),
    Feature(
        "simple queue",
        "q$ = queue.SimpleQueue()\nq$.put(1.0)",
        "q$.qsize()",
        mutate=("q$.put(2.0)", "q$.get_nowait()"),
        write=("q$.put(3.0)",),
        state=("q$.qsize()",),
    ),
    Feature(
        "priority queue",
        "q$ = queue.PriorityQueue()\nfor q$_ in range(1, 16): q$.put(float(q$_))",
        "q$.get_nowait()",
        mutate=("q$.put(-9.0)",),
        state=("sorted(q$.queue)",),
    ),
    Feature(
        "last in, first out",
        "q$ = queue.LifoQueue()\nfor q$_ in range(1, 16): q$.put(float(q$_))",
        "q$.get_nowait()",
        mutate=("q$.put(-9.0)",),
        state=("list(q$.queue)",),
    ),
    Feature(
        "level of a logger",
        _LOGGER,
        "log$.isEnabledFor(logging.INFO)",
        mutate=("log$.setLevel(logging.INFO)", "log$.setLevel(logging.ERROR)", "logging.disable(logging.CRITICAL)"),
        state=("log$.level",),
    ),
    Feature(
        "effective level of a logger",
        "log$ = logging.getLogger('soak.b$.c')\nlogging.getLogger('soak.b$').setLevel(30)",
        "log$.getEffectiveLevel()",
        mutate=("logging.getLogger('soak.b$').setLevel(10)", "log$.setLevel(40)"),
        undo="logging.getLogger('soak.b$.c').setLevel(0)",
    ),
    Feature(
        "attribute of a logger",
        _LOGGER,
        "log$.level",
        mutate=("log$.setLevel(logging.INFO)", "log$.level = 7"),
        write=("log$.setLevel(logging.ERROR)",),
        state=("log$.level",),
    ),
    Feature(
        "message of a logger",
        _LOGGER + "\nv$ = 2.0",
        "v$",
        mutate=("v$ = 3.0", "log$.setLevel(logging.CRITICAL)"),
        write=("log$.warning('v is %s', v$)", "log$.info('v')", "log$.warning(f'{v$}')"),
    ),
    Feature(
        "message of a logger by name",
        _LOGGER,
        "len(log$.handlers)",
        mutate=("log$.handlers.clear()", "logging.getLogger('soak.a$').setLevel(50)"),
        write=("logging.getLogger('soak.a$').warning('here')",),
    ),
    Feature("handlers of a logger", _LOGGER, "log$.hasHandlers()", mutate=("log$.handlers.clear()",)),
    Feature(
        "logger.handle",
        _LOGGER,
        "log$.disabled",
        mutate=("log$.disabled = True",),
        write=("log$.error('e')",),
        undo="logging.getLogger('soak.a$').disabled = False",
    ),
    Feature(
        "printing",
        "v$ = 2.0",
        "v$",
        mutate=("v$ = 3.0", "v$ += 1.0"),
        write=("print('v', v$)", "print('constant')", "sys.stdout.write('w')"),
    ),
    Feature(
        "stream of a handler",
        "h$ = logging.StreamHandler()\ns$ = io.StringIO()",
        "h$.stream is s$",
        mutate=("h$.setStream(s$)", "h$.setStream(sys.stderr)"),
        state=("type(h$.stream).__name__",),
    ),
    Feature(
        "class of a handler's stream",
        "h$ = logging.StreamHandler()",
        "len(type(h$.stream).__name__) + isinstance(h$.stream, io.StringIO)",
        mutate=("h$.setStream(io.StringIO())",),
    ),
    Feature(
        "printing a tensor's sum",
        "k$ = 1",
        "k$",
        write=(
            "print(k$, x.shape)",
            "print(x.sum().item())",
        ),
    ),
    Feature("a warning", "k$ = 1.0", "k$", mutate=("k$ = 2.0",), write=("warnings.warn('soak')",)),
    Feature(
        "warnings caught",
        """
            k$ = 'a'
            def f$(k):
                with warnings.catch_warnings(record=True) as c:
                    warnings.simplefilter('always')
                    warnings.warn(k)
                return len(c)
            """,
        "f$(k$)",
        mutate=("k$ = 'b'",),
    ),
    Feature(
        "environment variable",
        "os.environ['SOAK$'] = 'a'",
        "os.environ['SOAK$']",
        mutate=("os.environ['SOAK$'] = 'bb'", "os.environ.pop('SOAK$')", "os.putenv('SOAK$', 'c')"),
        write=("os.environ['SOAK$'] = 'ccc'",),
        state=("os.environ.get('SOAK$')",),
        undo=_UNSET,
    ),
    Feature(
        "environment variable with a default",
        "k$ = 1",
        "os.environ.get('SOAK$', 'zz')",
        mutate=("os.environ['SOAK$'] = 'bbbb'",),
        write=("os.environ['SOAK$'] = 'ccc'",),
        state=("os.environ.get('SOAK$')",),
        undo=_UNSET,
    ),
    Feature(
        "environment variable by getenv",
        "os.environ['SOAK$'] = 'a'",
        "os.getenv('SOAK$', 'dd')",
        mutate=("os.environ['SOAK$'] = 'bb'", "del os.environ['SOAK$']"),
        undo=_UNSET,
    ),
    Feature(
        "environment variable set",
        "k$ = 1",
        "'SOAK$' in os.environ",
        mutate=("os.environ['SOAK$'] = '1'",),
        undo=_UNSET,
    ),
]
