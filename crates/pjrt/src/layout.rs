//! The argument structs of PJRT's C interface, in layouts of our own, and the positions of its functions.
//!
//! Every struct begins with its size in bytes and a pointer to extensions, and newer versions only append fields. A
//! plugin refuses a size below that of its own version and accepts any larger one. So structs are those of the newest
//! header (0.116), zeroed, where zero means "not given", and end in spare zero words for the fields of later versions.

#![allow(dead_code, reason = "layouts have all fields up to the last that is used")]

use std::ffi::{c_char, c_int, c_void};

/// An untyped pointer; null where nothing is given.
pub(crate) type Pointer = *mut c_void;

/// Zero words after the known fields of a struct, which a later version may give a meaning to.
const SPARE_WORDS: usize = 8;

/// What every function of the table is called by: with a pointer to its struct. It returns null or an error object.
pub(crate) type Entry = unsafe extern "C" fn(arguments: Pointer) -> *mut RawError;

/// A struct that is passed to one function of the table.
pub(crate) trait Function {
    /// The position in the table of functions.
    const POSITION: usize;
    /// The name in the C header.
    const NAME: &'static str;
    /// A struct with its size, and zero in every other field.
    fn new() -> Self;
}

/// A function whose first argument is an object of the plugin.
pub(crate) trait Ask: Function {
    /// What it takes.
    type Of;
    /// Its struct for this object.
    fn of(object: *mut Self::Of) -> Self;
}

/// A function whose only argument is an object, which it leaves alive.
pub(crate) trait Question: Ask {}

/// A class of objects that the plugin creates, and that have to be destroyed.
pub(crate) trait Kind {
    /// The function that destroys one.
    type Destroy: Ask<Of = Self>;
}

/// A struct of the C header with these fields, and spare words if its size may grow.
macro_rules! sized {
    ($(#[$about:meta])* $name:ident { $($field:ident: $kind:ty),* $(,)? } $($spare:ident)?) => {
        $(#[$about])*
        #[repr(C)]
        pub(crate) struct $name {
            pub size: usize,
            pub extension: Pointer,
            $(pub $field: $kind,)*
            $($spare: [usize; SPARE_WORDS],)?
        }

        impl $name {
            /// With its size, and zero in every other field.
            pub(crate) fn zeroed() -> Self {
                // SAFETY: fields are integers, booleans, pointers, optional functions, and arrays and structs of
                // them: zero is a value of each.
                let mut it: Self = unsafe { std::mem::zeroed() };
                it.size = size_of::<Self>();
                it
            }
        }
    };
}

/// Functions, with the struct of each.
macro_rules! functions {
    ($($position:literal $c_name:ident $name:ident { $($field:ident: $kind:ty),* $(,)? })*) => { $(
        sized! {
            #[doc = concat!("`", stringify!($c_name), "_Args`.")]
            $name { $($field: $kind),* } spare
        }
        impl Function for $name {
            const POSITION: usize = $position;
            const NAME: &'static str = stringify!($c_name);
            fn new() -> Self {
                Self::zeroed()
            }
        }
    )* };
}

/// Functions that begin with one object: they destroy it, or need more than it.
macro_rules! asks {
    ($($position:literal $c_name:ident $name:ident of $class:ident { $($field:ident: $kind:ty),* $(,)? })*) => {
        functions! { $($position $c_name $name { object: *mut $class, $($field: $kind),* })* }
        $(impl Ask for $name {
            type Of = $class;
            fn of(object: *mut $class) -> Self {
                let mut it = Self::new();
                it.object = object;
                it
            }
        })*
    };
}

/// Functions that take one object only, and leave it alive.
macro_rules! questions {
    ($($position:literal $c_name:ident $name:ident of $class:ident $fields:tt)*) => {
        asks! { $($position $c_name $name of $class $fields)* }
        $(impl Question for $name {})*
    };
}

/// Classes of objects, with the function that destroys those which are ours.
macro_rules! kinds {
    ($($name:ident $($destroy:ident)?;)*) => { $(
        /// An object of the plugin, known by its address only.
        pub(crate) enum $name {}
        $(impl Kind for $name {
            type Destroy = $destroy;
        })?
    )* };
}

kinds! {
    RawError ErrorDestroy;
    RawEvent EventDestroy;
    RawClient ClientDestroy;
    RawBuffer BufferDestroy;
    RawExecutable ExecutableDestroy;
    RawLoaded LoadedDestroy;
    RawTopology TopologyDestroy;
    RawDevice;
    RawDescription;
}

asks! {
    0 PJRT_Error_Destroy ErrorDestroy of RawError {}
    5 PJRT_Event_Destroy EventDestroy of RawEvent {}
    11 PJRT_Client_Destroy ClientDestroy of RawClient {}
    40 PJRT_Executable_Destroy ExecutableDestroy of RawExecutable {}
    48 PJRT_Executable_OptimizedProgram OptimizedProgram of RawExecutable { program: *mut Program }
    50 PJRT_LoadedExecutable_Destroy LoadedDestroy of RawLoaded {}
    58 PJRT_Buffer_Destroy BufferDestroy of RawBuffer {}
    83 PJRT_TopologyDescription_Destroy TopologyDestroy of RawTopology {}
}

questions! {
    1 PJRT_Error_Message ErrorMessage of RawError { text: *const u8, length: usize }
    2 PJRT_Error_GetCode ErrorCode of RawError { code: c_int }
    8 PJRT_Event_Await EventAwait of RawEvent {}
    12 PJRT_Client_PlatformName PlatformName of RawClient { text: *const u8, length: usize }
    14 PJRT_Client_PlatformVersion PlatformVersion of RawClient { text: *const u8, length: usize }
    16 PJRT_Client_AddressableDevices ClientDevices of RawClient { list: *const *mut RawDevice, length: usize }
    23 PJRT_DeviceDescription_Id DescriptionId of RawDescription { id: c_int }
    26 PJRT_DeviceDescription_Kind DescriptionKind of RawDescription { text: *const u8, length: usize }
    29 PJRT_Device_GetDescription DeviceDescription of RawDevice { description: *mut RawDescription }
    34 PJRT_Device_MemoryStats DeviceMemoryStats of RawDevice {
        in_use: i64, peak: Counted, allocations: Counted, largest: Counted, limit: Counted, reserved: Counted,
        peak_reserved: Counted, reservable: Counted, largest_free: Counted, pool: Counted, peak_pool: Counted,
    }
    41 PJRT_Executable_Name ExecutableName of RawExecutable { text: *const u8, length: usize }
    44 PJRT_Executable_NumOutputs OutputCount of RawExecutable { count: usize }
    49 PJRT_Executable_Serialize Serialize of RawExecutable {
        bytes: *const u8, length: usize, holder: Pointer, free: Option<unsafe extern "C" fn(Pointer)>,
    }
    51 PJRT_LoadedExecutable_GetExecutable LoadedExecutable of RawLoaded { executable: *mut RawExecutable }
    52 PJRT_LoadedExecutable_AddressableDevices LoadedDevices of RawLoaded {
        list: *const *mut RawDevice, length: usize,
    }
    59 PJRT_Buffer_ElementType BufferType of RawBuffer { element: c_int }
    60 PJRT_Buffer_Dimensions BufferDimensions of RawBuffer { list: *const i64, length: usize }
    64 PJRT_Buffer_OnDeviceSizeInBytes BufferSize of RawBuffer { bytes: usize }
    65 PJRT_Buffer_Device BufferDevice of RawBuffer { device: *mut RawDevice }
    68 PJRT_Buffer_IsDeleted BufferIsDeleted of RawBuffer { is_deleted: bool }
    72 PJRT_Buffer_ReadyEvent BufferReady of RawBuffer { event: *mut RawEvent }
    84 PJRT_TopologyDescription_PlatformName TopologyPlatform of RawTopology { text: *const u8, length: usize }
    85 PJRT_TopologyDescription_PlatformVersion TopologyVersion of RawTopology { text: *const u8, length: usize }
    86 PJRT_TopologyDescription_GetDeviceDescriptions TopologyDevices of RawTopology {
        list: *const *mut RawDescription, length: usize,
    }
    90 PJRT_Executable_OutputElementTypes OutputTypes of RawExecutable { list: *const c_int, length: usize }
    91 PJRT_Executable_OutputDimensions OutputDimensions of RawExecutable {
        count: usize, dimensions: *const i64, ranks: *const usize,
    }
    95 PJRT_Client_TopologyDescription ClientTopology of RawClient { topology: *mut RawTopology }
    96 PJRT_Executable_GetCompiledMemoryStats ExecutableMemoryStats of RawExecutable {
        code: i64, arguments: i64, results: i64, aliased: i64, temporary: i64, host: [i64; 5], peak: i64, total: i64,
        later: [i64; 3],
    }
}

functions! {
    3 PJRT_Plugin_Initialize PluginInitialize {}
    4 PJRT_Plugin_Attributes PluginAttributes { list: *const NamedValue, length: usize }
    10 PJRT_Client_Create ClientCreate {
        options: *const NamedValue, count: usize,
        get: Option<unsafe extern "C" fn(*mut GetCallback) -> *mut RawError>, get_argument: Pointer,
        put: Option<unsafe extern "C" fn(*mut PutCallback) -> *mut RawError>, put_argument: Pointer,
        client: *mut RawClient,
        try_get: Option<unsafe extern "C" fn(*mut TryGetCallback) -> *mut RawError>, try_get_argument: Pointer,
    }
    20 PJRT_Client_Compile ClientCompile {
        client: *mut RawClient, program: *const Program, options: *const u8, options_length: usize,
        executable: *mut RawLoaded,
    }
    22 PJRT_Client_BufferFromHostBuffer BufferFromHost {
        client: *mut RawClient, data: *const u8, element: c_int, dimensions: *const i64, rank: usize,
        strides: *const i64, stride_count: usize, semantics: c_int, device: *mut RawDevice, memory: Pointer,
        layout: Pointer, done: *mut RawEvent, buffer: *mut RawBuffer,
    }
    55 PJRT_LoadedExecutable_Execute Execute {
        executable: *mut RawLoaded, options: *mut ExecuteOptions, arguments: *const *const *mut RawBuffer,
        devices: usize, count: usize, results: *const *mut *mut RawBuffer, events: *mut *mut RawEvent,
        device: *mut RawDevice,
    }
    56 PJRT_Executable_DeserializeAndLoad DeserializeAndLoad {
        client: *mut RawClient, bytes: *const u8, length: usize, executable: *mut RawLoaded, options: *const u8,
        options_length: usize,
    }
    69 PJRT_Buffer_CopyToDevice CopyToDevice {
        buffer: *mut RawBuffer, device: *mut RawDevice, copy: *mut RawBuffer,
    }
    70 PJRT_Buffer_ToHostBuffer BufferToHost {
        buffer: *mut RawBuffer, layout: Pointer, data: *mut u8, length: usize, event: *mut RawEvent,
    }
    82 PJRT_TopologyDescription_Create TopologyCreate {
        name: *const u8, name_length: usize, options: *const NamedValue, count: usize, topology: *mut RawTopology,
    }
    89 PJRT_Compile TopologyCompile {
        topology: *mut RawTopology, program: *const Program, options: *const u8, options_length: usize,
        client: *mut RawClient, executable: *mut RawExecutable,
    }
}

sized! {
    /// `PJRT_Program`: the text and the name of its format.
    Program { code: *mut u8, length: usize, format: *const u8, format_length: usize } spare
}

sized! {
    /// `PJRT_ExecuteOptions`.
    ExecuteOptions {
        send: Pointer, receive: Pointer, sends: usize, receives: usize, launch: c_int, keep: *const i64,
        keep_count: usize, context: Pointer, location: *const c_char, tasks: usize, task_ids: Pointer,
        incarnations: Pointer,
    } spare
}

sized! {
    /// `PJRT_NamedValue`. It is an element of arrays, so it has no spare words.
    NamedValue { name: *const u8, name_length: usize, kind: c_int, value: Payload, length: usize }
}

/// Makes an error object of the plugin, by a status code and a text.
pub(crate) type CallbackError =
    unsafe extern "C" fn(code: c_int, text: *const u8, length: usize) -> *mut RawError;

sized! {
    /// `PJRT_KeyValueGetCallback_Args`, which a plugin passes to us. It need not set the size.
    GetCallback {
        key: *const u8, key_length: usize, milliseconds: c_int, error: *const CallbackError, store: Pointer,
        value: *mut u8, length: usize, free: Option<unsafe extern "C" fn(*mut u8)>,
    }
}

sized! {
    /// `PJRT_KeyValueTryGetCallback_Args`.
    TryGetCallback {
        key: *const u8, key_length: usize, error: *const CallbackError, store: Pointer, value: *mut u8,
        length: usize, free: Option<unsafe extern "C" fn(*mut u8)>,
    }
}

sized! {
    /// `PJRT_KeyValuePutCallback_Args`.
    PutCallback {
        key: *const u8, key_length: usize, value: *const u8, length: usize, error: *const CallbackError,
        store: Pointer,
    }
}

/// The value of a [`NamedValue`], by its kind: 0 text, 1 integer, 2 integers, 3 float, 4 boolean.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union Payload {
    pub text: *const u8,
    pub integer: i64,
    pub integers: *const i64,
    pub float: f32,
    pub boolean: bool,
}

/// A number that not every platform counts.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Counted {
    pub value: i64,
    pub is_set: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of a struct that a plugin of version 0.115 expects at least, as it says itself.
    #[test]
    fn structs_are_as_large_as_the_headers_say() {
        let spare = SPARE_WORDS * size_of::<usize>();
        assert_eq!(size_of::<ClientCreate>() - spare, 88);
        assert_eq!(size_of::<ExecuteOptions>() - spare, 112);
        assert_eq!(size_of::<ExecutableMemoryStats>() - spare, 144);
        assert_eq!(size_of::<Execute>() - spare, 80);
        assert_eq!(size_of::<Program>() - spare, 48);
        assert_eq!(size_of::<NamedValue>(), 56);
        let callbacks = [size_of::<GetCallback>(), size_of::<TryGetCallback>(), size_of::<PutCallback>()];
        assert_eq!(callbacks, [80, 72, 64]);
        assert_eq!(size_of::<DeviceMemoryStats>() - spare, 32 + 10 * 16);
        let it = ClientCreate::new();
        assert_eq!((it.size, it.count), (size_of::<ClientCreate>(), 0));
        assert!(it.options.is_null() && it.extension.is_null() && it.spare == [0; SPARE_WORDS]);
    }
}
