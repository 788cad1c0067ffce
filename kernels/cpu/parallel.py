"""One kernel call spread over threads that wait in compiled code: no interpreter, no lock of its between two kernels.

    caller   writes a job on the board ─ publishes a ticket ─ takes chunks ─ waits until all are done
    worker   waits for a ticket with chunks left ─ takes one ─ runs it ─ counts it as done

A job is the address of compiled code and of its arguments, which lie on the caller's stack: they are valid as long as
a chunk that somebody has taken is not counted as done. The ticket holds the number of the job, its chunks and the next
of them in one word, so that nobody takes a chunk of a job that is over. A worker that has waited for a while sleeps
until the next job wakes it.

Each kernel has a launcher, two lines that make its job: numba keeps on disk what a module names, and no function made
for the kernel it is given.

A tape takes down the jobs that are run, with a copy of their arguments; `replay` runs them again, in one call.

tape     int64: where the next entry goes, then entries: code, words of arguments, items, chunks, the arguments
board    int64: TICKET, CODE, ARGUMENTS, ITEMS, DONE, BUSY, STOP, FAILED, each on its own cache line, then two lines
         for each worker: whether it sleeps, and the semaphore it sleeps on
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.atomics import atomic_add, atomic_exchange, atomic_load, atomic_replace, atomic_store, cycles, pause
from kernels.cpu.jit import kernel

LINE = 8  # int64 of a cache line
TICKET, CODE, ARGUMENTS, ITEMS, DONE, BUSY, STOP, FAILED, WORKERS = (LINE * line for line in range(9))
MOST_CHUNKS = (1 << 16) - 1
HEADER = 4  # words of an entry before its arguments

_SPIN_CYCLES = 500_000  # some 0.2 ms: longer than between two kernels of a step
_YIELD_CYCLES = 50_000  # a caller whose worker has lost its core gives up its own now and then

_sem_wait = types.ExternalFunction("sem_wait", types.int32(types.intp))
_sem_post = types.ExternalFunction("sem_post", types.int32(types.intp))
_sched_yield = types.ExternalFunction("sched_yield", types.int32())


@intrinsic
def _address(typing_context, array):
    def codegen(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    return types.intp(array), codegen


def _without_owner(context: Any, builder: Any, value_type: Any, value: Any) -> Any:
    """The same arrays without the objects that own their memory: nothing counts references to what it borrows."""
    if hasattr(value_type, "types"):  # a tuple
        items = zip(value_type.types, cgutils.unpack_tuple(builder, value), strict=True)
        return context.make_tuple(builder, value_type, [_without_owner(context, builder, *item) for item in items])
    if isinstance(value_type, types.Array):
        array = context.make_array(value_type)(context, builder, value)
        array.meminfo, array.parent = (cgutils.get_null_value(field.type) for field in (array.meminfo, array.parent))
        return array._getvalue()
    return value


@intrinsic
def job(typing_context, kernel, arguments):
    """(code, arguments, words of these): by these addresses any thread can run kernel(*arguments, start, stop), until
    the function that calls this returns.

    A kernel that raises leaves its chunk unfinished and FAILED on the board.
    """
    signature_of_kernel = kernel.get_call_type(typing_context, (*arguments, types.intp, types.intp), {})

    def codegen(context, builder, signature, args):
        number = ir.IntType(64)
        values = [
            _without_owner(context, builder, *item)
            for item in zip(arguments, cgutils.unpack_tuple(builder, args[1]), strict=True)
        ]
        frame = ir.LiteralStructType([value.type for value in values])
        held = cgutils.alloca_once(builder, frame)
        for index, value in enumerate(values):
            builder.store(value, cgutils.gep_inbounds(builder, held, 0, index))

        function_type = ir.FunctionType(number, [number, number, number])
        name = builder.module.get_unique_name(f"job.{kernel.dispatcher.__name__}")
        code = ir.Function(builder.module, function_type, name)
        code.linkage = "internal"
        inner = ir.IRBuilder(code.append_basic_block("entry"))
        given = inner.inttoptr(code.args[0], frame.as_pointer())
        taken = [inner.load(cgutils.gep_inbounds(inner, given, 0, index)) for index in range(len(values))]
        compiled = kernel.dispatcher.overloads[signature_of_kernel.args]
        context.active_code_library.add_linking_library(compiled.library)
        function = context.declare_function(builder.module, compiled.fndesc)
        status, _ = context.call_conv.call_function(
            inner, function, compiled.fndesc.restype, compiled.fndesc.argtypes, [*taken, *code.args[1:]]
        )
        inner.ret(inner.zext(status.is_error, number))
        words = ir.Constant(number, -(-context.get_abi_sizeof(frame) // 8))
        addresses = [builder.ptrtoint(pointer, number) for pointer in (code, held)]
        return context.make_tuple(builder, signature.return_type, [*addresses, words])

    return types.UniTuple(types.intp, 3)(kernel, arguments), codegen


@intrinsic
def _call(typing_context, code, arguments, start, stop):
    """The kernel of a job over [start, stop); not 0 if it has raised."""

    def codegen(context, builder, signature, args):
        number = ir.IntType(64)
        function_type = ir.FunctionType(number, [number, number, number])
        return builder.call(builder.inttoptr(args[0], function_type.as_pointer()), args[1:])

    return types.int64(types.intp, types.intp, types.intp, types.intp), codegen


@kernel
def _run_chunk(board, code, arguments, start, stop):
    if _call(code, arguments, start, stop) != 0:
        atomic_store(board, FAILED, 1)


@kernel
def _chunks_left(board):
    ticket = atomic_load(board, TICKET)
    return (ticket & 0xFFFF) < ((ticket >> 16) & 0xFFFF)


@kernel
def _work(board):
    """Takes chunks of the job on the board until none is left."""
    while True:
        ticket = atomic_load(board, TICKET)
        chunk, num_chunks = ticket & 0xFFFF, (ticket >> 16) & 0xFFFF
        if chunk >= num_chunks:
            return
        if not atomic_replace(board, TICKET, ticket, ticket + 1):
            continue
        items = board[ITEMS]
        _run_chunk(board, board[CODE], board[ARGUMENTS], items * chunk // num_chunks, items * (chunk + 1) // num_chunks)
        atomic_add(board, DONE, 1)


@kernel
def _run(board, code, arguments, num_items, num_chunks):
    """Who finds the workers busy with another caller's job does all of it alone."""
    if num_chunks < 2 or board.size == WORKERS or atomic_exchange(board, BUSY, 1) == 1:
        _run_chunk(board, code, arguments, 0, num_items)
        return
    board[CODE], board[ARGUMENTS], board[ITEMS] = code, arguments, num_items
    atomic_store(board, DONE, 0)
    number = ((atomic_load(board, TICKET) >> 32) + 1) & 0x7FFFFFFF
    atomic_store(board, TICKET, number << 32 | num_chunks << 16)
    for worker in range(WORKERS, board.size, 2 * LINE):
        if atomic_exchange(board, worker, 0) == 1:
            _sem_post(_address(board[worker + LINE :]))
    _work(board)
    begun = cycles()
    while atomic_load(board, DONE) < num_chunks:
        pause()
        if cycles() - begun > _YIELD_CYCLES:
            _sched_yield()
            begun = cycles()
    atomic_store(board, BUSY, 0)


@intrinsic
def _copy_words(typing_context, target, source, words):
    """From an address to the beginning of an int64 array."""

    def codegen(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        cgutils.memcpy(builder, data, builder.inttoptr(args[1], data.type), args[2])
        return context.get_dummy_value()

    return types.void(target, types.intp, types.intp), codegen


@kernel
def _take_down(tape, code, arguments, words, num_items, num_chunks):
    """Appends an entry; a tape that is too short ends at -1."""
    place = tape[0]
    if place < 0 or place + HEADER + words > tape.size:
        tape[0] = -1
        return
    tape[place], tape[place + 1], tape[place + 2], tape[place + 3] = code, words, num_items, num_chunks
    _copy_words(tape[place + HEADER :], arguments, words)
    tape[0] = place + HEADER + words


@kernel
def replay(board, tape):
    """Runs the jobs of a tape, one after the other."""
    place = 1
    while place < tape[0]:
        code, words, num_items, num_chunks = tape[place], tape[place + 1], tape[place + 2], tape[place + 3]
        _run(board, code, _address(tape[place + HEADER :]), num_items, num_chunks)
        place += HEADER + words


@kernel
def run_job(board, tape, what, num_items, num_chunks):
    """The job over [0, num_items) in `num_chunks` pieces, by this thread and the workers; all is done at the return.

    It is taken down, if there is a tape; and not run, if there is no board.
    """
    code, arguments, words = what
    if tape.size:
        _take_down(tape, code, arguments, words, num_items, num_chunks)
    if board.size:
        _run(board, code, arguments, num_items, num_chunks)


@kernel
def serve(board, worker):
    """The life of the worker whose lines are at board[worker:]; returns when board[STOP] is set."""
    while atomic_load(board, STOP) == 0:
        _work(board)
        begun = cycles()
        while not _chunks_left(board) and atomic_load(board, STOP) == 0 and cycles() - begun < _SPIN_CYCLES:
            pause()
        if cycles() - begun < _SPIN_CYCLES:
            continue
        atomic_store(board, worker, 1)
        # A job that came before the store above has seen nobody asleep, so it is looked for once more.
        anything = _chunks_left(board) or atomic_load(board, STOP) != 0
        if not anything or atomic_exchange(board, worker, 0) == 0:
            _sem_wait(_address(board[worker + LINE :]))


@kernel
def stop(board):
    """Ends all workers."""
    atomic_store(board, STOP, 1)
    for worker in range(WORKERS, board.size, 2 * LINE):
        if atomic_exchange(board, worker, 0) == 1:
            _sem_post(_address(board[worker + LINE :]))
