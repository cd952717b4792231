//! Tensors in the memory of a device.

use crate::api::{Failure, Handle, list};
use crate::client::{Client, Device};
use crate::element;
use crate::layout::{
    BufferDevice, BufferDimensions, BufferFromHost, BufferIsDeleted, BufferReady, BufferSize, BufferToHost,
    BufferType, CopyToDevice, RawBuffer,
};
use partita_base::{DType, Diagnostic, Result};
use std::fmt;

/// A tensor in the memory of one device. Dropping it frees the memory, once computations that read it have ended.
///
/// It may still be computed: what needs its content waits. A donated buffer has given its memory to a result; what is
/// left answers questions about type, shape and device, and refuses everything else.
pub struct Buffer {
    // Above the client: fields are dropped in their order, and a client must outlive its buffers.
    pub(crate) handle: Handle<RawBuffer>,
    pub(crate) client: Client,
}

impl Buffer {
    pub(crate) fn upload(
        client: &Client,
        dtype: DType,
        shape: &[usize],
        data: &[u8],
        device: &Device,
    ) -> Result<Buffer> {
        let described = || describe(dtype, shape);
        device.belongs_to(client)?;
        let size = byte_size(dtype, shape);
        if size != Some(data.len()) {
            let size = size.map_or("less than 2^63".into(), |size| size.to_string());
            return Err(Diagnostic::new("E481", "the bytes to upload do not fit the shape")
                .expected(format!("{size} bytes for {}", described()))
                .found(format!("{} bytes", data.len())));
        }
        let dimensions: Vec<i64> = shape.iter().map(|extent| *extent as i64).collect();
        let mut it = BufferFromHost::zeroed();
        it.client = client.0.handle.pointer();
        (it.data, it.element) = (data.as_ptr(), element::number(dtype));
        (it.dimensions, it.rank) = (dimensions.as_ptr(), dimensions.len());
        it.device = client.0.device(device.index);
        let api = client.0.handle.api();
        // Semantics stay 0: the plugin reads the data during the call only. No strides mean dense and row-major.
        // SAFETY: client and device are alive and belong together; dimensions and data have the stated lengths and
        // outlive the call. Buffer and event are ours.
        let created = unsafe {
            api.call(&mut it).and_then(|()| {
                let buffer = api.own(it.buffer, "PJRT_Client_BufferFromHostBuffer")?;
                api.own(it.done, "PJRT_Client_BufferFromHostBuffer")?.wait()?;
                Ok(buffer)
            })
        };
        let handle = created.map_err(|failure| {
            failure.report("E481", format!("{} cannot be copied to {device:?}", described()))
        })?;
        Ok(Buffer { handle, client: client.clone() })
    }

    /// Its elements, dense and row-major in the byte order of this machine, of [`DType::size_bytes`] each. Waits until
    /// they are computed.
    ///
    /// # Errors
    ///
    /// E481 if the buffer was donated, or if the computation that gives it failed.
    pub fn download(&self) -> Result<Vec<u8>> {
        let api = self.handle.api();
        let mut it = BufferToHost::zeroed();
        it.buffer = self.handle.pointer();
        // SAFETY: the buffer is alive. Without a target, the plugin only states the size.
        let copied = unsafe { api.call(&mut it) }.and_then(|()| {
            let mut data = vec![0; it.length];
            it.data = data.as_mut_ptr();
            // SAFETY: the target has the stated size and is kept until the event says that the copy has ended. The event
            // is ours.
            unsafe {
                api.call(&mut it)?;
                api.own(it.event, "PJRT_Buffer_ToHostBuffer")?.wait()?;
            }
            Ok(data)
        });
        copied.map_err(|failure| self.report(failure, "cannot be read"))
    }

    /// A copy on another device of the same client. Returns before the copy is made.
    ///
    /// # Errors
    ///
    /// E481 if the buffer was donated, or if the device is one of another client. Some platforms also refuse a copy to the
    /// device where it is.
    pub fn copy_to(&self, device: &Device) -> Result<Buffer> {
        device.belongs_to(&self.client)?;
        let api = self.handle.api();
        let mut it = CopyToDevice::zeroed();
        (it.buffer, it.device) = (self.handle.pointer(), self.client.0.device(device.index));
        // SAFETY: buffer and device are alive and of one client. The copy is ours.
        let copy = unsafe { api.call(&mut it).and_then(|()| api.own(it.copy, "PJRT_Buffer_CopyToDevice")) };
        let handle =
            copy.map_err(|failure| self.report(failure, &format!("cannot be copied to {device:?}")))?;
        Ok(Buffer { handle, client: self.client.clone() })
    }

    /// Waits until it is computed or copied.
    ///
    /// # Errors
    ///
    /// E481 if the buffer was donated, or if the computation that gives it failed.
    pub fn wait(&self) -> Result<()> {
        let api = self.handle.api();
        let ready = self.handle.ask::<BufferReady>();
        // SAFETY: the event is ours.
        let ended = ready.and_then(|it| unsafe { api.own(it.event, "PJRT_Buffer_ReadyEvent") }?.wait());
        ended.map_err(|failure| self.report(failure, "is not computed"))
    }

    /// Whether its memory belongs to another buffer now, because it was donated.
    ///
    /// # Errors
    ///
    /// E482 if the plugin does not say.
    pub fn is_deleted(&self) -> Result<bool> {
        let found = self.handle.ask::<BufferIsDeleted>();
        found.map(|it| it.is_deleted).map_err(|failure| unanswered(failure, "a buffer"))
    }

    /// Its element type.
    ///
    /// # Errors
    ///
    /// E482 for one that Partita does not know.
    pub fn dtype(&self) -> Result<DType> {
        let found = self.handle.ask::<BufferType>();
        known(found.map_err(|failure| unanswered(failure, "a buffer"))?.element)
    }

    /// Its extents; none for a scalar.
    ///
    /// # Errors
    ///
    /// E482 if the plugin does not say.
    pub fn shape(&self) -> Result<Vec<usize>> {
        let found =
            self.handle.ask::<BufferDimensions>().map_err(|failure| unanswered(failure, "a buffer"))?;
        // SAFETY: the extents belong to the buffer, which is alive.
        let extents = unsafe { list(found.list, found.length) };
        Ok(extents.iter().map(|extent| usize::try_from(*extent).unwrap_or(0)).collect())
    }

    /// Bytes that it takes on its device, which may pad it.
    ///
    /// # Errors
    ///
    /// E482 if the buffer was donated.
    pub fn size_on_device(&self) -> Result<usize> {
        let found = self.handle.ask::<BufferSize>();
        found.map(|it| it.bytes).map_err(|failure| unanswered(failure, "a buffer"))
    }

    /// The device that it is on.
    ///
    /// # Errors
    ///
    /// E482 if the plugin does not say.
    pub fn device(&self) -> Result<Device> {
        let found = self.handle.ask::<BufferDevice>().map_err(|failure| unanswered(failure, "a buffer"))?;
        match self.client.0.index_of(found.device) {
            Some(index) => Ok(Device { client: self.client.clone(), index }),
            None => Err(Diagnostic::new("E482", "a buffer is on a device of another process")),
        }
    }

    /// Whether it is on this device, or does not say where it is.
    pub(crate) fn is_on(&self, device: &Device) -> bool {
        let found = self.handle.ask::<BufferDevice>();
        found.map_or(true, |it| it.device == self.client.0.device(device.index))
    }

    /// Whether it has this type, or does not say which it has.
    pub(crate) fn has_type(&self, dtype: DType, shape: &[usize]) -> bool {
        let Ok(found) = self.handle.ask::<BufferType>() else { return true };
        let Ok(extents) = self.handle.ask::<BufferDimensions>() else { return true };
        // SAFETY: the extents belong to the buffer, which is alive.
        let extents = unsafe { list(extents.list, extents.length) };
        let same = extents.iter().zip(shape).all(|(a, b)| usize::try_from(*a) == Ok(*b));
        found.element == element::number(dtype) && extents.len() == shape.len() && same
    }

    fn report(&self, failure: Failure, what: &str) -> Box<Diagnostic> {
        failure.report("E481", format!("{self:?} {what}"))
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.dtype(), self.shape(), self.device()) {
            (Ok(dtype), Ok(shape), Ok(device)) => {
                write!(f, "{} on {device:?}", describe(dtype, &shape))
            }
            _ => f.write_str("a buffer"),
        }
    }
}

/// The bytes of a dense tensor. `None` from 2^63 bytes on, also if only another extent of 0 makes them fewer: XLA
/// multiplies extents as signed numbers.
fn byte_size(dtype: DType, shape: &[usize]) -> Option<usize> {
    let mut extents = shape.iter().filter(|extent| **extent > 0);
    let size = extents.try_fold(dtype.size_bytes(), |size, extent| size.checked_mul(*extent))?;
    i64::try_from(size).ok()?;
    Some(if shape.contains(&0) { 0 } else { size })
}

/// A tensor type as StableHLO writes it.
pub(crate) fn describe(dtype: DType, shape: &[usize]) -> String {
    let extents: String = shape.iter().map(|extent| format!("{extent}x")).collect();
    format!("tensor<{extents}{}>", dtype.mlir_name())
}

/// The element type with this number; E482 for one without a name here.
pub(crate) fn known(number: i32) -> Result<DType> {
    element::element(number).ok_or_else(|| {
        Diagnostic::new("E482", "the plugin uses an element type that Partita does not know")
            .found(format!("number {number} of the C header"))
    })
}

/// E482: the plugin does not answer a question about `what`.
pub(crate) fn unanswered(failure: Failure, what: &str) -> Box<Diagnostic> {
    failure.report("E482", format!("the PJRT plugin does not describe {what}"))
}
